"""Training a network that is stored in half precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.tiny_run import STEPS, everything, make_network, numbers_of, run_until


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    whole, events = run_until(tmp_path / "whole", STEPS, network=make_network(seed=5, dtype=dtype))
    _, first = run_until(tmp_path / "parts", STEPS // 2, network=make_network(seed=5, dtype=dtype))
    resumed, second = run_until(tmp_path / "parts", STEPS, network=make_network(seed=5, dtype=dtype))
    assert numbers_of(first + second) == numbers_of(events)
    assert everything(resumed) == everything(whole)
