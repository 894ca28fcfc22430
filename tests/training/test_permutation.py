"""The shuffled order of an epoch: complete, repeatable, different every epoch, and the same for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mila.errors import ConfigurationError
from mila.training.permutation import Permutation

SEEDS = st.integers(0, 2**64 - 1)


@given(size=st.integers(1, 300), seed=SEEDS, epoch=st.integers(0, 10**9))
def test_every_number_comes_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed, epoch)
    assert len(order) == size
    assert sorted(order) == list(range(size))


@given(seed=SEEDS)
def test_seeds_and_epochs_give_orders_of_their_own(seed: int) -> None:
    neighbours = [(seed, 0), (seed, 1), (seed ^ 1, 0), (seed ^ 1, 1)]
    orders = {tuple(Permutation(60, *neighbour)) for neighbour in neighbours}
    assert len(orders) == len(neighbours)


def test_all_orders_of_four_are_about_equally_frequent() -> None:
    counts = Counter(tuple(Permutation(4, seed, epoch)) for seed in range(24) for epoch in range(100))
    assert len(counts) == 24
    assert 60 < min(counts.values()) <= max(counts.values()) < 140  # 100 each, standard deviation 10


def test_the_order_never_changes_between_versions() -> None:
    """Checkpoints rely on these numbers: a change here breaks every run that is resumed."""
    assert list(Permutation(10, seed=0, epoch=0)) == [7, 8, 2, 6, 9, 3, 0, 4, 5, 1]
    large = Permutation(10**12, seed=2**64 - 1, epoch=7)
    assert [large[place] for place in (0, 1, 10**12 - 1)] == [628199853181, 804246732115, 903414369558]


@pytest.mark.parametrize("place", [-1, 5])
def test_a_place_outside_is_refused(place: int) -> None:
    with pytest.raises(ConfigurationError, match=f"expected 0 to 4, got {place}"):
        Permutation(5, seed=0, epoch=0)[place]


@pytest.mark.parametrize(
    ("size", "seed", "epoch", "name"),
    [(0, 0, 0, "size"), (1, -1, 0, "seed"), (1, 2**64, 0, "seed"), (1, 0, -1, "epoch")],
)
def test_arguments_out_of_range_are_named(size: int, seed: int, epoch: int, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}: expected"):
        Permutation(size, seed, epoch)
