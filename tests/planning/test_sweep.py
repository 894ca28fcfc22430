"""Sweeps are plans, one for each combination; and sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mila.errors import ConfigurationError, DTypeError, UnaddressableError
from mila.models import GptConfig
from mila.planning import PlanRequest, plan
from mila.planning.report import Outcome
from mila.planning.sizes import parse_bytes, parse_count, parse_counts
from mila.planning.sweep import MOST_POINTS, sweep
from tests.planning.random_models import target_of

GPT = target_of(GptConfig(vocab_size=50, embedding_dim=24, num_layers=2, num_heads=2, max_seq_len=64), "gpt")


def test_every_point_is_a_plan() -> None:
    request = PlanRequest(budget=67_200_000, batch=2)
    report = sweep(GPT, request, {"context": [8, 64], "dtype": ["float32", "bfloat16"]})
    assert report.varied == ["context", "dtype"]
    assert [point.options for point in report.points] == [
        {"context": context, "dtype": dtype} for context in (8, 64) for dtype in ("float32", "bfloat16")
    ]
    outcomes = set()
    for point in report.points:
        alone = plan(GPT, request.model_copy(update=point.options), search=False)
        assert (point.reserved_bytes, point.needed_bytes, point.lines, point.outcome) == (
            alone.reserved_bytes,
            alone.verdict.needed_bytes,
            alone.lines,
            alone.verdict.outcome,
        )
        assert point.problem is None
        outcomes.add(point.outcome)
    assert report.choices.batch == 2
    assert (report.budget_bytes, report.budget_source, report.uncounted) == (67_200_000, "as asked", [])
    assert report.target == plan(GPT, search=False).target


def test_everything_that_changes_bytes_may_vary() -> None:
    ranges: dict[str, list[int | str]] = {"mode": ["inference", "training"], "optimizer": ["adamw", "none"]}
    report = sweep(GPT, None, ranges)
    sizes = [point.reserved_bytes for point in report.points]
    assert sizes[0] == sizes[1]
    assert len(set(sizes)) == 3
    assert len(sweep(GPT, None, {"prefill": [1, 64], "quantize": ["none"], "batch": [1, 3]}).points) == 4


def test_sizes_that_no_memory_addresses_do_not_fit() -> None:
    report = sweep(GPT, PlanRequest(device="cuda:9"), {"batch": [1, 10**17]})
    good, bad = report.points
    assert (good.outcome, good.problem) == (Outcome.UNKNOWN, None)
    assert (bad.outcome, bad.reserved_bytes, bad.choices) == (Outcome.DOES_NOT_FIT, None, None)
    assert bad.problem is not None
    assert bad.problem.endswith("more than any memory addresses")
    with pytest.raises(
        UnaddressableError, match=r"none of 2 combinations can be built; the first: .* memory addresses"
    ):
        sweep(GPT, None, {"batch": [10**16, 10**17]})
    with pytest.raises(ConfigurationError, match="none of 2 combinations"):
        sweep(GPT, None, {"batch": [10**17], "context": [64, 10**9]})


@pytest.mark.parametrize("modes", [["inference", "training"], ["training", "inference"]])
def test_what_was_chosen_for_one_mode_alone_is_known(modes: list[int | str]) -> None:
    request = PlanRequest.model_validate({"prefill": 5, "accumulate": 3, "optimizer": "none"})
    report = sweep(GPT, request, {"mode": modes})
    chosen = report.choices_of_modes
    assert (chosen.prefill, chosen.accumulate, chosen.optimizer) == (5, 3, "none")
    assert sweep(GPT, None, {"batch": [1, 2]}).choices_of_modes.accumulate is None
    assert [point.choices is not None and point.choices.mode for point in report.points] == modes


def test_a_point_that_no_build_takes_says_why() -> None:
    report = sweep(GPT, None, {"context": [64, 128]})
    good, bad = report.points
    assert good.problem is None
    assert (bad.reserved_bytes, bad.lines, bad.outcome) == (None, [], Outcome.UNKNOWN)
    assert bad.problem == "context: expected at most 64 positions, which gpt allows, got 128"


@pytest.mark.parametrize(
    ("ranges", "error", "words"),
    [
        ({}, ConfigurationError, "expected an option that varies"),
        ({"device": ["cpu"]}, ConfigurationError, "expected one of context, batch"),
        ({"batch": []}, ConfigurationError, "expected values of batch"),
        ({"batch": range(1, MOST_POINTS + 2)}, ConfigurationError, "at most 256 combinations, got 257"),
        ({"context": [65, 66]}, ConfigurationError, "none of 2 combinations can be built; the first: context"),
        ({"dtype": ["float32", "int8"]}, DTypeError, "int8"),
        ({"quantize": ["none", "fp8"]}, ConfigurationError, "quantize: expected none"),
        ({"mode": ["prediction"]}, ValidationError, "mode"),
        ({"batch": [0]}, ValidationError, "batch"),
    ],
)
def test_ranges_that_mean_nothing_are_refused(ranges: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sweep(GPT, None, ranges)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("8589934592", 8 << 30),
        ("12GiB", 12 << 30),
        ("12 gib", 12 << 30),
        ("24GB", 24 * 10**9),
        ("1.5MiB", 3 << 19),
        ("0.1KiB", 102),
        ("80gb", 80 * 10**9),
        ("2TiB", 2 << 40),
        ("3PiB", 3 << 50),
        ("7.5EiB", 15 << 59),
        ("9EB", 9 * 10**18),
        ("7 B", 7),
        ("0", 0),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes("--budget", text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "12G", "-1GiB", "1e9", "12 GiBs", "0x10", "12GiB 3", "1,5GiB", "\u0661GiB"]
)
def test_no_bytes(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--budget: expected a size such as 12GiB"):
        parse_bytes("--budget", text)


def test_a_letter_alone_is_asked_what_it_means() -> None:
    with pytest.raises(ConfigurationError, match="write GiB for powers of 1024, GB for powers of 1000"):
        parse_bytes("--budget", "12g")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5", [5]),
        ("1k..128k", [1 << power for power in range(10, 18)]),
        ("1,2,4", [1, 2, 4]),
        ("1000..3000", [1000, 1024, 2048, 3000]),
        ("3..4", [3, 4]),
        ("1..4,4,100", [1, 2, 4, 100]),
        ("2M", [1 << 21]),
    ],
)
def test_numbers(text: str, values: list[int]) -> None:
    assert parse_counts("--sweep context", text) == values
    assert [parse_count("--context", str(value)) for value in values] == values


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "1.5", "1..", "..4", "4..4", "4..2", "a", "1,,2", "1g", "9" * 19, "\u0663"]
)
def test_no_numbers(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--sweep context: expected a"):
        parse_counts("--sweep context", text)
