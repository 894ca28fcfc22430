"""Commands that ``mila plan`` prints: run, they give the plan that they are about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mila.planning import PlanReport, SweepReport
from mila.planning.schema import read_document
from tests.cli.commands import mila_here
from tests.cli.plan_documents import FIXED, document
from tests.planning.random_models import random_config

BASH = shutil.which("bash")
MIB = 1 << 20
#: Names of folders, which must come to the command line as they are.
NAMES = ("model", "-model", "--json", "a model's $(x) `y`", "line\nbreak\x1b[2J", "direction\u202e", "caf\u00e9 \u4e2d")
#: Options that decide about a plan, one of each line.
CHOICES: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((), ("--tie-word-embeddings",), ("--no-tie-word-embeddings",)),
    ((), ("--ignore-field", "more"), ("--ignore-field=more", "--ignore-fields", "-x")),
    ((), ("--context", "500"), ("--context", "2k")),
    ((), ("--batch", "7")),
    ((), ("--dtype", "bfloat16"), ("--dtype", "float64")),
    ((), ("--prefill", "64"), ("--mode", "training"), ("--mode=training", "--optimizer=none", "--accumulate", "3")),
    ((), ("--device", "cuda:3")),
    (("--budget", "64GiB"), ("--budget", "72MiB"), ("--budget", str(95 * MIB + 1)), ("--budget", "200MB")),
)  # fmt: skip
SAME = ("target", "choices", "reserved_bytes", "lines", "fullest_step", "elsewhere", "verdict", "limits", "tree")


def words_of(command: str) -> list[str]:
    """The words that a shell makes of a line."""
    assert BASH is not None
    printed = subprocess.run([BASH, "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
    return [word.decode() for word in printed.split(b"\0")[:-1]]


def commands_of(page: Path) -> list[list[str]]:
    """All commands of a page, as somebody copies them."""
    found = re.findall(r'<code class="command"[^>]*>(.*?)</code>', page.read_text("utf-8"), re.DOTALL)
    assert found
    return [words_of(unescape(re.sub("<[^>]*>", "", each))) for each in found]


def asked(random: Random) -> list[str]:
    """Options, drawn until they go together."""
    while True:
        options = [word for choice in CHOICES for word in random.choice(choice)]
        if not ("float64" in options and "cuda:3" in options):
            return options


def model_folder(folder: Path, random: Random, unknown: set[str]) -> None:
    """A small model whose config has fields that Mila does not know."""
    folder.mkdir()
    sizes: dict[str, Any] = {"n_positions": 4096, "n_embd": 48, "n_head": 2, "n_layer": 2, "vocab_size": 3000}
    config = random_config(random, "gpt2") | sizes | {"n_inner": None} | dict.fromkeys(unknown, 1)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
@pytest.mark.parametrize("seed", range(21))
def test_commands_of_a_page_give_the_plans_that_they_are_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random, name = Random(seed), NAMES[seed % len(NAMES)]
    monkeypatch.chdir(tmp_path)
    options = asked(random)
    model_folder(tmp_path / name, random, unknown={"more", "-x"} & {word.rpartition("=")[2] for word in options})
    report = run([*options, "--html", "plan.html", "--", name])
    *remedies, last = commands_of(tmp_path / "plan.html")
    again = run(last[2:])
    assert {each: getattr(again, each) for each in SAME} == {each: getattr(report, each) for each in SAME}
    for command, remedy in zip(remedies, report.remedies, strict=True):
        expected = (report.target, remedy.reserved_bytes, remedy.left_bytes)
        for words in (command[2:], [*options, *remedy.options.split(), "--", name]):
            changed = run(["--no-search", *words])
            assert (changed.target, changed.reserved_bytes, changed.verdict.left_bytes) == expected


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
@pytest.mark.parametrize("modes", ["training,inference", "inference,training"])
def test_the_command_of_a_sweep_gives_its_first_plan(tmp_path: Path, modes: str) -> None:
    options = ("--prefill", "64", "--accumulate", "2", "--optimizer", "none", *FIXED)
    result = mila_here("plan", "gpt2", "--sweep", f"mode={modes}", "--html", tmp_path / "plan.html", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    found = document("gpt2", "--sweep", f"mode={modes}", *options)[1]
    assert isinstance(found, SweepReport)
    (command,) = commands_of(tmp_path / "plan.html")
    assert run(command[2:]).reserved_bytes == found.points[0].reserved_bytes


def run(words: list[str]) -> PlanReport:
    result = mila_here("plan", "--json", *words)
    found = read_document(result.stdout)
    assert isinstance(found, PlanReport), found
    return found
