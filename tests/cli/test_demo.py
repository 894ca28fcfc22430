"""``mila demo``: it checks its claims, and says which did not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mila.cli import demo
from mila.cli.demo_run import DemoSettings
from tests.cli.commands import mila_here

EXACT = "the build took exactly the predicted bytes"
BEATS = "the network beats the bigram model"
RESUMES = "a resumed run is the uninterrupted one, bit for bit"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network and a corpus that take no time."""

    def settings(**chosen: Any) -> DemoSettings:
        sizes: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "batch_size": 4, "validation_batches": 2}
        return DemoSettings(**chosen, corpus_bytes=300_000, **sizes)

    monkeypatch.setattr(demo, "DemoSettings", settings)


def against(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    """Put a bigram model of that loss in place of the real one: a few steps beat none that is real."""
    monkeypatch.setattr(demo, "bigram_loss", lambda *tokens: loss)


def test_it_shows_that_its_claims_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    against(monkeypatch, 99.0)
    result = mila_here("demo", "--steps", "14", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    shown = result.stdout
    assert shown.index("reserved") < shown.index("predicted") < shown.index("allocated") < shown.index("step 4:")
    for claim in (EXACT, BEATS, RESUMES):
        assert f"yes  {claim}" in shown
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["resumed", "run"]


def test_a_claim_that_fails_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = mila_here("demo", "--steps", "12", "--out", tmp_path, "--json")
    assert result.exit_code == 1
    assert result.stderr == f"mila: demo: not shown: {BEATS}\n"
    found = json.loads(result.stdout)
    assert found["claims"] == {EXACT: True, BEATS: False, RESUMES: True}
    assert found["allocated_bytes"] == found["plan"]["reserved_bytes"]
    assert found["resident_bytes"] is None or found["resident_bytes"] > 0
    assert len(found["here"]["losses_and_norms"]) == 10


def test_another_process_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    against(monkeypatch, 99.0)
    in_a_new_process = demo._in_a_new_process

    def differ(task: str, *arguments: Any) -> Any:
        found = in_a_new_process(task, *arguments)
        if task == "resume":
            found["losses_and_norms"][-1][0] += 1e-7
        return found

    monkeypatch.setattr(demo, "_in_a_new_process", differ)
    result = mila_here("demo", "--steps", "12", "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (1, f"mila: demo: not shown: {RESUMES}\n")


def test_the_time_decides_the_steps() -> None:
    assert demo._steps_within(100, per_step=0.01) == 8000
    assert demo._steps_within(10, per_step=1.0) == demo._FEWEST_STEPS


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = mila_here("demo", "--steps", "12", "--out", tmp_path)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "expected a new or empty folder" in result.stderr
