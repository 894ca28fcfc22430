"""``mila plan``: what it prints adds up, its exit codes say what happened, and JSON is what is published."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mila.cli.plan_report_text import report_text
from mila.memory import format_bytes
from mila.planning import PlanReport, PlanRequest, SweepReport, plan
from mila.planning.fitting import MOST_BATCH
from mila.planning.presets import preset_names
from mila.planning.presets_report import PresetsReport
from mila.planning.report import Limit
from mila.planning.sweep import sweep
from tests.cli.commands import mila_here, mila_process
from tests.cli.plan_documents import FIXED, document
from tests.cli.terminal import Terminal
from tests.planning.random_models import random_config


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
    assert f"No change of up to 3 options does: parameters alone take {report.lines[0].bytes:,} bytes" in text


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


def test_what_cuda_takes_unmeasured_is_in_the_headline() -> None:
    asked = ("gpt2", "--device", "cuda:0", "--budget", "1GiB", "--no-search")
    words = "without CUDA context and kernels (not measured)"
    assert f"FITS, {words}: needs " in " ".join(mila_here("plan", *asked).stdout.split())
    found = document(*asked)[1]
    assert isinstance(found, PlanReport)
    assert found.verdict.uncounted == ["CUDA context and kernels"]
    swept = mila_here("plan", *asked[:-1], "--sweep", "context=512").stdout
    assert words in " ".join(swept.split())
    assert words not in mila_here("plan", "gpt2", "--no-search", *FIXED).stdout


def test_totals_say_what_they_are() -> None:
    result = mila_here("plan", "gpt2", *FIXED)
    report = plan("gpt2", PlanRequest(budget=64 << 30))
    last = part(result.stdout, "Counted elsewhere").splitlines()[-1]
    assert last.split()[:4] == ["Needed,", "all", "together", f"{report.verdict.needed_bytes:,}"]
    for limit in report.limits:
        assert f"{limit.reserved_bytes:,} bytes reserved" in part(result.stdout, "The largest that fits")


def test_a_sweep_without_a_budget_says_that_it_cannot_tell() -> None:
    result = mila_here("plan", "gpt2", "--sweep", "context=512", "--device", "cuda:9")
    assert (result.exit_code, result.stderr) == (2, "")
    assert part(result.stdout, "CANNOT TELL") == "CANNOT TELL: cuda:9 is not here, and no budget was given.\n"


def test_the_tree_has_every_component_and_repeated_ones_once() -> None:
    result = mila_here("plan", "gpt2", "--tree", *FIXED)
    _, _, *rows = part(result.stdout, "By component").split("\ncomponent ")[1].splitlines()
    tree = plan("gpt2", PlanRequest(), search=False).tree
    root, *below = tree
    blocks = [row for row in below if row.path.count(".") == 1 and ".block_" in row.path]
    persistent = [row.parameter_bytes + row.state_bytes for row in (root, *blocks)]
    fullest = sum(row.fullest_bytes for row in blocks)
    assert numbers(rows[0]) == [persistent[0], root.fullest_bytes]
    (of_blocks,) = (row for row in rows if row.startswith("  block_"))
    assert of_blocks.startswith("  block_0 … block_11 (x 12)  ")
    assert len(set(persistent[1:])) == 1
    assert numbers(of_blocks) == [sum(persistent[1:]), persistent[1], fullest]
    children = [row for row in rows if row.startswith("  ") and not row.startswith("   ")]
    assert sum(numbers(row)[0] for row in children if numbers(row)) == persistent[0]
    assert sum(numbers(row)[-1] for row in children if len(numbers(row)) > 1) == root.fullest_bytes
    assert "component " not in mila_here("plan", "gpt2", *FIXED).stdout


def test_of_components_that_repeat_and_differ_no_size_of_each_is_said() -> None:
    result = mila_here("plan", "llama-3.2-1b", "--tree", "--no-search", *FIXED)
    assert re.search(r"\n    rope \(x 16\) +Rope +33,554,432 +differ +0\n", result.stdout)
    assert re.search(r"\n  block_0 … block_15 \(x 16\) +LlamaBlock +[\d,]+ +differ +[\d,]+\n", result.stdout)


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
    result = mila_here("plan", "gpt2", "--context", "8", "--budget", "8388607TiB")
    rows = [row.split() for row in part(result.stdout, "The largest that fits").splitlines()[1:]]
    assert [row[:2] for row in rows] == [["context", "1,024"], ["batch", "no"]]


@pytest.mark.parametrize("size", [1, 1023, 1_025_024, 1_048_570, 999 << 20, 1023 << 40, 2**53 - 1, 2**62])
def test_columns_stay_apart_whatever_the_sizes(size: int) -> None:
    """1,025,024 bytes are 1,001.00 KiB: five characters more than 1.00 MiB."""
    report = plan("gpt2", PlanRequest(budget=size), search=False)
    lines = [line.model_copy(update={"bytes": size}) for line in report.lines]
    step = report.fullest_step.model_copy(update={"lines": lines, "bytes": len(lines) * size})
    others = [each.model_copy(update={"bytes": size}) for each in report.elsewhere]
    limits = [
        Limit(option=name, value=size, reserved_bytes=size, is_models_limit=True) for name in ("context", "batch")
    ]
    changes = {"lines": lines, "reserved_bytes": len(lines) * size, "fullest_step": step, "elsewhere": others}
    text = report_text(report.model_copy(update={**changes, "limits": limits}), tree=True)
    cell = f"{size:,}"
    rows = [row for row in text.splitlines() if f"  {cell} " in row]
    assert len(rows) == 2 * len(lines) + len(others) + len(limits)
    for row in rows:
        label, found, *rest = re.split(" {2,}", row)
        assert (found, label.replace(",", "").replace("/", "").replace(" ", "").isalpha()) == (cell, True)
        assert rest[0] in (format_bytes(size), f"{cell} bytes reserved")


def test_small_budgets_are_said_once() -> None:
    for size, words in ((0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1,024 bytes (1.00 KiB)")):
        text = " ".join(mila_here("plan", "gpt2", "--no-search", "--budget", str(size)).stdout.split())
        assert f", of {words} as asked; " in text


def test_a_batch_without_a_limit_is_called_one(tmp_path: Path) -> None:
    options = ("--context", "8", "--budget", "8388607TiB", "--html", tmp_path / "plan.html")
    result = mila_here("plan", "gpt2", *options)
    assert f"batch no limit found up to {MOST_BATCH:,}\n" in re.sub(" +", " ", result.stdout)
    assert f"batch: no limit found up to {MOST_BATCH:,}" in (tmp_path / "plan.html").read_text("utf-8")
    report = document("gpt2", *options[:4])[1]
    assert isinstance(report, PlanReport)
    assert [(limit.option, limit.is_open) for limit in report.limits] == [("context", False), ("batch", True)]


def test_a_sweep_over_modes_asks_each_for_what_is_its_own() -> None:
    options = ("--prefill", "64", "--accumulate", "2", "--optimizer", "none", *FIXED)
    found = document("gpt2", "--sweep", "mode=inference,training", *options)[1]
    assert isinstance(found, SweepReport)
    requests = [PlanRequest(prefill=64), PlanRequest.model_validate({"mode": "training", "optimizer": "none"})]
    assert [point.reserved_bytes for point in found.points] == [
        plan("gpt2", request, search=False).reserved_bytes for request in requests
    ]
    for modes in ("inference,training", "training,inference"):
        said = " ".join(mila_here("plan", "gpt2", "--sweep", f"mode={modes}", *options).stdout.split())
        for words in ("prefill 64 in inference", "optimizer none in training", "2 passes per update in training"):
            assert words in said


def test_a_sweep_says_of_sizes_that_no_memory_addresses_that_they_do_not_fit() -> None:
    options = ("--sweep", f"batch=1,{10**17}")
    result = mila_here("plan", "gpt2", *options, *FIXED)
    assert result.exit_code == 0
    assert part(result.stdout, "    ").splitlines()[-1].split()[1:] == ["-", "does", "not", "fit"]
    assert "does not fit: model: the buffers take" in result.stdout
    assert mila_here("plan", "gpt2", *options, "--device", "cuda:9").exit_code == 2
    refused = mila_here("plan", "gpt2", "--sweep", f"batch={10**17}", *FIXED)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (3, "", 1)


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


def test_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """In pipes too: ``less -R`` and ``cat`` obey what comes out of them. A line break is no space."""
    folder = tmp_path / "\x1b[2Jmo\nd\u2028el\u202e"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(random_config(Random(1), "gpt2")))
    for options in ((), ("--tree",), ("--sweep", "batch=1,2")):
        result = mila_here("plan", folder, "--no-search", *options, *FIXED)
        assert result.exit_code == 0
        assert result.stdout.startswith("\\x1b[2Jmo\\x0ad\\u2028el\\u202e: ")
        assert all(character.isprintable() or character == "\n" for character in result.stdout)


def test_what_the_config_says_can_be_overridden(tmp_path: Path) -> None:
    config = random_config(Random(1), "gpt2") | {"tie_word_embeddings": True, "new_field": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused = mila_here("plan", tmp_path)
    assert (refused.exit_code, refused.stderr.strip().endswith("pass --ignore-fields new_field")) == (1, True)
    noted = mila_here("plan", tmp_path, "--ignore-fields", "new_field", "--ignore-field", "newer", *FIXED)
    assert "note: the config has no field 'newer' to ignore" in noted.stdout
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
    code, found = document("--list-presets")
    assert isinstance(found, PresetsReport)
    assert (code, [each.name for each in found.presets]) == (0, [*preset_names()])
    assert [f"{each.parameters:,}" for each in found.presets] == [row.split()[1] for row in rows]


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
    assert "The first of 2 plans" in page.read_text("utf-8")


def test_it_runs_by_itself() -> None:
    result = mila_process("plan", "llama-3.1-405b", "--context", "128k", "--budget", "1TiB", "--no-search", "--json")
    assert (result.returncode, result.stderr) == (3, "")
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["target"]["parameters"] == 405_853_388_800
    assert sum(line["bytes"] for line in report["lines"]) == report["reserved_bytes"]
