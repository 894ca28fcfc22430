"""What buffers occupy: the union of their bytes, each byte once."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mila.memory import Category, MemoryStats, format_bytes

PRECEDENCE = [Category.PARAMETER, Category.STATE, Category.GRADIENT]
NUMBERS = st.integers(0, 2**70)
STATS = st.builds(MemoryStats, *[NUMBERS] * 6)
RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from(PRECEDENCE)).map(
        lambda r: (min(r[:2]), max(r[:2]), r[2])
    ),
    max_size=12,
)


def counted_one_by_one(ranges: list[tuple[int, int, Category]]) -> dict[Category, int]:
    totals = dict.fromkeys(PRECEDENCE, 0)
    for byte in range(61):
        held = {category for start, end, category in ranges if start <= byte < end}
        first = next((category for category in PRECEDENCE if category in held), None)
        if first is not None:
            totals[first] += 1
    return totals


@given(RANGES)
def test_every_byte_counts_once_under_its_first_category(ranges: list[tuple[int, int, Category]]) -> None:
    stats = MemoryStats.of_device_ranges(ranges)
    expected = counted_one_by_one(ranges)
    assert stats.device_parameter_bytes == expected[Category.PARAMETER]
    assert stats.device_state_bytes == expected[Category.STATE]
    assert stats.device_gradient_bytes == expected[Category.GRADIENT]
    assert stats.total_host_bytes == 0


@given(RANGES, st.randoms())
def test_the_order_of_ranges_does_not_matter(ranges: list[tuple[int, int, Category]], random: object) -> None:
    shuffled = list(ranges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert MemoryStats.of_device_ranges(shuffled) == MemoryStats.of_device_ranges(ranges)


@given(STATS, STATS, STATS)
def test_stats_add_field_by_field(a: MemoryStats, b: MemoryStats, c: MemoryStats) -> None:
    total = a + b
    for field in dataclasses.fields(MemoryStats):
        assert getattr(total, field.name) == getattr(a, field.name) + getattr(b, field.name)
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + MemoryStats() == a
    assert total.total_bytes == a.total_bytes + b.total_bytes


@given(STATS)
def test_totals_are_sums(stats: MemoryStats) -> None:
    assert stats.total_device_bytes == (
        stats.device_parameter_bytes + stats.device_state_bytes + stats.device_gradient_bytes
    )
    assert stats.total_host_bytes == stats.host_parameter_bytes + stats.host_state_bytes + stats.host_gradient_bytes
    assert stats.total_bytes == stats.total_device_bytes + stats.total_host_bytes


def test_stats_add_to_nothing_else() -> None:
    with pytest.raises(TypeError):
        MemoryStats() + 1  # type: ignore[operator]


def test_stats_print_as_a_table() -> None:
    table = str(MemoryStats(1024, 2048, 512, 1, 2, 3))
    assert [line.split()[0] for line in table.splitlines()] == [
        "Category",
        "----------",
        "Parameters",
        "State",
        "Gradients",
        "Total",
    ]
    assert "1.00 KiB" in table
    assert "3.50 KiB" in table


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20, "1.00 MiB"),
        (3 * 2**30, "3.00 GiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1.00 PiB"),
        (5000 * 2**50, "5,000.00 PiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text
