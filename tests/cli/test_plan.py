"""``mila plan``: what it prints adds up, its exit codes say what happened, and JSON is what is published."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mila.memory import format_bytes
from mila.planning import Failure, PlanReport, PlanRequest, SweepReport, plan
from mila.planning.fitting import MOST_BATCH
from mila.planning.presets import preset_names
from mila.planning.schema import read_document
from mila.planning.sweep import sweep
from tests.cli.commands import mila_here, mila_process
from tests.cli.terminal import Terminal
from tests.planning.random_models import random_config

FIXED = ("--budget", "64GiB")


def document(*arguments: str | Path) -> tuple[int, PlanReport | SweepReport | Failure]:
    """Run with ``--json``; return the exit code and the only document."""
    result = mila_here("plan", *arguments, "--json")
    assert (result.stderr, result.stdout.count("\n")) == ("", 1)
    return result.exit_code, read_document(result.stdout)


def numbers(text: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"\b\d{1,3}(?:,\d{3})+\b", text)]


def part(text: str, title: str) -> str:
    """One paragraph of what was printed."""
    return next(found for found in text.split("\n\n") if found.startswith(title))


# ---------------------------------------------------------------------- for people


@pytest.mark.parametrize("options", [(), ("--mode", "training"), ("--device", "cuda:0", "--dtype", "bfloat16")])
def test_the_printed_lines_sum_up(options: Sequence[str]) -> None:
    result = mila_here("plan", "gpt2", *options, *FIXED)
    assert (result.exit_code, result.stderr) == (0, "")
    for title, total in (("Reserved by Mila", "Reserved  "), ("In the transient region", "Alive at that step")):
        rows = [row for row in part(result.stdout, title).splitlines() if not row.startswith(("    ", title))]
        sizes = [size for row in rows for size in re.findall(r"^[A-Z][\w /]*?\s{2,}([\d,]+) ", f"{row} ")]
        *lines, whole = [int(size.replace(",", "")) for size in sizes]
        assert len(lines) >= 1
        assert sum(lines) == whole
        assert total in part(result.stdout, title)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_everything_is_said() -> None:
    options = ("--context", "4k", "--dtype", "float16", "--budget", "1GiB")
    result = mila_here("plan", "smollm2-1.7b", *options)
    report = plan("smollm2-1.7b", PlanRequest(context=4096, dtype="float16", budget=1 << 30))
    assert result.exit_code == 3
    text = " ".join(result.stdout.split())
    for line in report.lines:
        assert (f"{line.label} {line.bytes:,} " in text) is (line.bytes > 0)
    for other in report.elsewhere:
        assert other.label in text
        assert other.source in text
    for sentence in report.assumptions:
        assert sentence in text
    assert "DOES NOT FIT: needs" in text
    assert f"{report.verdict.needed_bytes:,} bytes ({format_bytes(report.verdict.needed_bytes)})" in text
    assert "of 1,073,741,824 bytes (1.00 GiB) as asked" in text
    assert "context none fits batch none fits" in text
    assert f"No change of one or two options does: parameters alone take {report.lines[0].bytes:,} bytes" in text


def test_what_fits_and_what_would_make_it_fit(tmp_path: Path) -> None:
    config = random_config(Random(3), "gpt2") | {"n_positions": 512, "n_embd": 64, "n_head": 2, "n_layer": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = ("plan", tmp_path, "--mode", "training", "--budget", "156MiB")
    result = mila_here(*asked, "--batch", "48")
    request = PlanRequest.model_validate({"mode": "training", "batch": 48, "budget": 156 << 20})
    report = plan(str(tmp_path), request)
    assert result.exit_code == 3
    limits = {limit.option: limit for limit in report.limits}
    assert numbers(part(result.stdout, "The largest that fits")) == [
        limits["context"].reserved_bytes,
        limits["batch"].reserved_bytes,
    ]
    assert report.remedies[0].options.startswith("--batch ")
    for remedy in report.remedies:
        assert remedy.options in result.stdout
        assert mila_here(*asked, *merged(remedy.options), "--no-search").exit_code == 0


def merged(options: str) -> list[str]:
    """Options of a remedy, and those asked before that they do not replace."""
    given = options.split()
    return given if "--batch" in given else [*given, "--batch", "48"]


def test_the_tree_has_every_component_and_repeated_ones_once() -> None:
    result = mila_here("plan", "gpt2", "--tree", *FIXED)
    rows = part(result.stdout, "component").splitlines()[2:]
    report = plan("gpt2", PlanRequest(), search=False)
    names = [row.split()[0] for row in rows]
    assert names[0] == "model"
    blocks = [row.split() for row in rows if row.split()[0].startswith("block_")]
    assert len(blocks) <= 3
    assert sum(int(row[2].strip(")")) if row[1] == "(x" else 1 for row in blocks) == 12
    root = report.tree[0]
    assert numbers(rows[0]) == [root.parameter_bytes + root.state_bytes, root.fullest_bytes]
    assert "component " not in mila_here("plan", "gpt2", *FIXED).stdout


def test_a_sweep_is_a_table() -> None:
    options = ("--sweep", "context=256..1k", "--dtype", "float32,bfloat16", "--budget", "600MB")
    result = mila_here("plan", "gpt2", *options)
    ranges: dict[str, list[int | str]] = {"context": [256, 512, 1024], "dtype": ["float32", "bfloat16"]}
    report = sweep("gpt2", PlanRequest(budget=600_000_000), ranges)
    rows = part(result.stdout, "context").splitlines()[2:]
    assert len(rows) == len(report.points) == 6
    for row, point in zip(rows, report.points, strict=True):
        assert f"{point.options['context']:,}" in row
        assert str(point.options["dtype"]) in row
        assert f"{point.reserved_bytes:,}" in row
        assert row.endswith({"fits": "  fits", "does_not_fit": "does not fit"}[point.outcome.value])
    assert {point.outcome.value for point in report.points} == {"fits", "does_not_fit"}
    assert result.exit_code == 0


def test_a_sweep_names_the_device_whatever_varies() -> None:
    result = mila_here("plan", "gpt2", "--sweep", "mode=inference,training", "--device", "cuda:3", *FIXED)
    assert (result.exit_code, result.stdout.splitlines()[1].split(",")[0]) == (0, "on cuda:3")


def test_the_columns_of_limits_stay_apart() -> None:
    result = mila_here("plan", "gpt2", "--context", "8", "--budget", "9999999TiB")
    rows = [row.split() for row in part(result.stdout, "The largest that fits").splitlines()[1:]]
    assert [row[:2] for row in rows] == [["context", "1,024"], ["batch", f"{MOST_BATCH:,}"]]


def test_a_sweep_says_what_cannot_be() -> None:
    result = mila_here("plan", "gpt2", "--sweep", "context=1k,2k", *FIXED)
    assert result.exit_code == 0
    assert "not possible: context: expected at most 1,024 positions" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--budget", "1GiB"), 0),
        (("--budget", "100MiB"), 3),
        (("--device", "cuda:9"), 2),
        (("--sweep", "context=8,16", "--budget", "100MiB"), 3),
        (("--sweep", "batch=1,64", "--budget", "1GiB"), 0),
        (("--sweep", "context=8,16", "--device", "cuda:9"), 2),
        (("--sweep", "context=8,9999", "--budget", "1GiB"), 0),
    ],
)
def test_the_exit_code_is_the_verdict(options: Sequence[str], code: int) -> None:
    result = mila_here("plan", "gpt2", *options)
    assert (result.exit_code, result.stderr) == (code, "")
    words = {0: "FITS", 3: "DOES NOT FIT", 2: "CANNOT TELL: "}[code]
    assert words in result.stdout or "--sweep" in options


def test_a_terminal_shows_what_is_asked_and_wipes_it_away() -> None:
    with Terminal("plan", "gpt2", "--budget", "1GiB", columns=100) as terminal:
        terminal.wait_for("planning: context 1,024, batch ")
        terminal.wait_for("FITS: needs")
        after = len(terminal.shown)
        assert terminal.finish() == 0
        assert "planning" not in terminal.shown[after:]


# ---------------------------------------------------------------------- for programs


def test_json_is_what_python_returns() -> None:
    code, found = document("gpt2", "--context", "512", *FIXED)
    assert code == 0
    assert found == plan("gpt2", PlanRequest(context=512, budget=64 << 30))
    code, found = document("gpt2", "--sweep", "batch=1,2", "--context", "512", *FIXED)
    assert code == 0
    assert found == sweep("gpt2", PlanRequest(context=512, budget=64 << 30), {"batch": [1, 2]})


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("nosuch",), 2, "'nosuch': expected a file, a folder, a preset or hf://owner/name"),
    (("gpt2", "--context", "2048"), 2, "context: expected at most 1,024 positions, which gpt2 allows, got 2,048"),
    (("gpt2", "--context", "many"), 2, "--context: expected a number from 1 on, such as 4096 or 32k, got 'many'"),
    (("gpt2", "--batch", "0"), 2, "--batch: expected a number from 1 on"),
    (("gpt2", "--mode", "prediction"), 2, "--mode: input should be 'inference' or 'training', got 'prediction'"),
    (("gpt2", "--dtype", "int8"), 2, "dtype: expected one of float32"),
    (("gpt2", "--quantize", "fp8"), 2, "quantize: expected none"),
    (("gpt2", "--mode", "training", "--optimizer", "sgd"), 2, "--optimizer: input should be 'adamw' or 'none'"),
    (("gpt2", "--optimizer", "none"), 2, "--optimizer: is for training, got 'none' in inference"),
    (("gpt2", "--accumulate", "4"), 2, "accumulate: is for training"),
    (("gpt2", "--mode", "training", "--prefill", "8"), 2, "prefill: is for inference"),
    (("gpt2", "--prefill", "2000"), 2, "prefill: expected at most the context of 1,024 positions, got 2,000"),
    (("gpt2", "--device", "tpu"), 2, "device: expected 'cpu' or 'cuda:<index>', got 'tpu'"),
    (("gpt2", "--device", "cuda:0", "--dtype", "float64"), 2, "not float64"),
    (("gpt2", "--budget", "12G"), 2, "--budget: expected a size such as 12GiB"),
    (("gpt2", "--sweep", "depth=1"), 2, "--sweep: expected option=values with one of context, batch"),
    (("gpt2", "--sweep", "context"), 2, "--sweep: expected option=values"),
    (("gpt2", "--sweep", "context=9..3"), 2, "--sweep context: expected a range from less to more, got '9..3'"),
    (("gpt2", "--sweep", "batch=1", "--sweep", "batch=2"), 2, "--sweep: expected every option once, got batch twice"),
    (("gpt2", "--sweep", "context=1,2", "--context", "3"), 2, "--context: is given by --sweep too"),
    (("gpt2", "--sweep", "dtype=float32,float16", "--dtype", "float32"), 2, "--dtype: is given by --sweep too"),
    (("gpt2", "--dtype", "float32,"), 2, "--dtype: expected names by commas"),
    (("gpt2", "--sweep", "context=2k,4k"), 2, "none of 2 combinations can be built"),
    (("gpt2", "--html", "page.txt"), 2, "expected a file that ends in .html"),
    (("gpt2", "--plot", "picture.txt"), 2, "expected a file that ends in .png"),
    (("gpt2", "--batch", "9" * 17), 2, "more than any memory addresses"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_one_line_or_one_document(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = mila_here("plan", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("mila: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    found_code, found = document(*arguments)
    assert isinstance(found, Failure)
    assert (found_code, found.exit_code, found.target) == (code, code, arguments[0])
    assert f"mila: {found.message}\n" == result.stderr


@pytest.mark.parametrize("arguments", [("gpt2", "--nonsense"), (), ("gpt2", "--context"), ("gpt2", "gpt2")])
def test_wrong_usage_is_a_document_too(arguments: tuple[str, ...]) -> None:
    plain = mila_here("plan", *arguments)
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert "Error: " in plain.stderr
    result = mila_here("plan", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (2, "")
    assert isinstance(read_document(result.stdout), Failure)


def test_of_wrong_usage_the_target_is_no_value_of_an_option() -> None:
    code, found = document("--context", "32k", "--tree", "gpt2", "--nonsense")
    assert isinstance(found, Failure)
    assert (code, found.target) == (2, "gpt2")


@pytest.mark.parametrize("content", ['{"model_type": "gpt2"', "[]", '{"model_type": "gpt2"}'])
def test_a_malformed_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    result = mila_here("plan", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    code, found = document(tmp_path)
    assert isinstance(found, Failure)
    assert (code, found.exit_code) == (1, 1)
    assert str(tmp_path) in found.message


def test_of_a_model_that_mila_does_not_have_nothing_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    result = mila_here("plan", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "expected one of the model types gpt2" in result.stderr
    assert document(tmp_path)[0] == 2


def test_what_the_config_says_can_be_overridden(tmp_path: Path) -> None:
    config = random_config(Random(1), "gpt2") | {"tie_word_embeddings": True, "new_field": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert mila_here("plan", tmp_path).exit_code == 1
    sizes = []
    for option in ("--tie-word-embeddings", "--no-tie-word-embeddings"):
        found = document(tmp_path, "--ignore-field", "new_field", option, *FIXED)[1]
        assert isinstance(found, PlanReport)
        sizes.append(found.parameter_bytes)
    assert sizes[1] - sizes[0] == 4 * config["vocab_size"] * config["n_embd"]


def test_the_presets_are_listed() -> None:
    result = mila_here("plan", "--list-presets")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = result.stdout.splitlines()[2:]
    assert tuple(row.split()[0] for row in rows) == preset_names()
    assert "gpt2                 124,439,808      12    1,024  openai-community/gpt2" in rows


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for option in ("--html", "--plot"):
        place = tmp_path / "missing" / ("page.html" if option == "--html" else "picture.png")
        result = mila_here("plan", "gpt2", option, place, "--no-search", *FIXED)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        code, found = document("gpt2", option, place, "--no-search", *FIXED)
        assert isinstance(found, Failure)
        assert (code, f"mila: {found.message}\n") == (1, result.stderr)


# ---------------------------------------------------------------------- files


def test_pages_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    result = mila_here("plan", "gpt2", "--html", page, "--plot", picture, *FIXED)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "584,266,944" in page.read_text("utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = mila_here("plan", "gpt2", "--sweep", "context=8,16", "--html", page, "--plot", picture, *FIXED)
    assert (again.exit_code, again.stderr) == (0, "")
    assert "584,266,944" not in page.read_text("utf-8")


def test_it_runs_by_itself() -> None:
    result = mila_process("plan", "llama-3.1-405b", "--context", "128k", "--budget", "1TiB", "--no-search", "--json")
    assert (result.returncode, result.stderr) == (3, "")
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["target"]["parameters"] == 405_853_388_800
    assert sum(line["bytes"] for line in report["lines"]) == report["reserved_bytes"]
