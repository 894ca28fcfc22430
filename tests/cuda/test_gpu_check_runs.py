"""How ``benchmarks.gpu_check`` divides its time, what its processes leave, its tables and its command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import requirements
from benchmarks.gpu_check.budget import Budget
from benchmarks.gpu_check.part_process import TakeRow, run_process
from benchmarks.gpu_check.parts import PART_OF, PARTS, Part, launch_process, run_parts
from benchmarks.gpu_check.rows import PartResult, Row, goals, json_report, markdown_report, text_report
from benchmarks.gpu_check.settings import Settings
from tests.cuda.test_gpu_check import TINY
from tests.emulator.stand_in.activate import FOLDER as STAND_IN

# ---------------------------------------------------------------------- time and failures


class FakeTime:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run_fake(seconds: float, durations: dict[str, float], **options: Any) -> tuple[list[PartResult], list[str]]:
    """Run parts that take so long, or all they get; return the results and what was published."""
    clock, published = FakeTime(), []

    def launch(part: Part, settings: Settings, granted: float, take_row: TakeRow) -> str:
        take_row(Row(f"{part.name} began", f"{granted:.0f} s"))
        clock.now += min(granted, durations[part.name])
        if part.name == "broken":
            raise OSError("no such program")
        return "finished" if durations[part.name] <= granted else f"cut after {granted:.0f} s"

    def publish(results: Sequence[PartResult]) -> None:
        published.append(", ".join(f"{result.name} {result.state}" for result in results))

    parts = [Part(name, name, 100.0, needs=("pytest",) if name == "tests" else ()) for name in durations]
    results = run_parts(parts, TINY, Budget(seconds, clock), launch, publish, clock=clock, **options)
    return results, published


def test_parts_get_their_limit_or_what_is_left() -> None:
    results, _ = run_fake(250.0, {"a": 30.0, "b": 500.0, "c": 95.0, "d": 30.0, "e": 1.0})
    assert [result.state for result in results] == [
        "finished",
        "cut after 100 s",
        "finished",
        "cut after 25 s",
        "left out: 0 s were left",
    ]
    assert [result.seconds for result in results] == [30.0, 100.0, 95.0, 25.0, 0.0]
    assert [list(result.rows) for result in results] == [["a began"], ["b began"], ["c began"], ["d began"], []]


def test_a_part_is_not_started_in_the_last_seconds() -> None:
    results, _ = run_fake(100.0 + Budget.LEAST_SECONDS - 1, {"a": 100.0, "b": 1.0})
    assert [result.state for result in results] == ["finished", "left out: 9 s were left"]


def test_a_part_that_fails_leaves_the_results_of_others() -> None:
    results, published = run_fake(250.0, {"a": 1.0, "broken": 1.0, "c": 1.0})
    assert [result.state for result in results] == ["finished", "failed: OSError: no such program", "finished"]
    assert all(len(result.rows) == 1 for result in results)
    assert published[:3] == ["a running", "a finished", "a finished, broken running"]
    assert len(published) == 6


def test_a_part_without_its_packages_is_left_out() -> None:
    results, _ = run_fake(250.0, {"tests": 1.0, "c": 1.0}, missing=["pytest"])
    assert [result.state for result in results] == ["left out: pytest cannot be imported", "finished"]


def rows_of_process(program: str, seconds: float) -> tuple[str, list[Row]]:
    rows: list[Row] = []
    return run_process([sys.executable, "-c", program], {}, seconds, rows.append), rows


ROW = 'print(\'{"what": "a", "measured": "1 s"}\', flush=True)'


def test_rows_of_a_process_come_as_it_prints_them() -> None:
    assert rows_of_process(f"{ROW}\n{ROW}", 60.0) == ("finished", [Row("a", "1 s")] * 2)


def test_a_part_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    rows: list[Row] = []
    assert launch_process(PART_OF["machine"], TINY, 120.0, rows.append) == "finished"
    assert [row.measured for row in rows if row.what == "device"] == ["CPU emulator"]


def test_a_process_that_fails_says_why_and_leaves_its_rows() -> None:
    state, rows = rows_of_process(f"{ROW}\nraise RuntimeError('out of luck')", 60.0)
    assert state.startswith("failed: ")
    assert state.endswith("RuntimeError: out of luck")
    assert rows == [Row("a", "1 s")]


def test_a_process_that_hangs_is_killed_and_leaves_its_rows() -> None:
    state, rows = rows_of_process(f"{ROW}\nimport time; time.sleep(600)", 2.0)
    assert state == "cut after 2 s"
    assert rows == [Row("a", "1 s")]


# ---------------------------------------------------------------------- tables and the command


RESULTS = [
    PartResult("kernels", "Kernels", "finished", 12.4, {}),
    PartResult("memory", "Memory", "left out: 0 s were left", 0.0, {}),
]
for _row in (
    Row("copy (4,)", "3,000 GB/s", "copy 3,500 GB/s", 0.857, 0.85, {"milliseconds": 0.25}),
    Row("rope (4,)", "1,000 GB/s", "copy | 3,500 GB/s", 0.286, 0.85),
    Row("fill (4,)", "failed: no", goal=0.85),
):
    RESULTS[0].add(_row)


def test_the_table_says_which_goals_were_met() -> None:
    assert goals(RESULTS) == "goals met: 1 of 3"
    lines = text_report(RESULTS).splitlines()
    assert lines[0].split() == ["what", "measured", "beside", "ratio", "goal"]
    assert "Kernels: finished (12 s)" in lines
    assert "copy (4,)  3,000 GB/s  copy 3,500 GB/s    0.857  0.85 met" in lines
    assert "Memory: left out: 0 s were left (0 s)" in lines
    assert lines[-1] == goals(RESULTS)


def test_markdown_has_the_same_rows() -> None:
    lines = markdown_report(RESULTS).splitlines()
    assert lines[2] == "| **Kernels: finished (12 s)** |  |  |  |  |"
    assert r"copy \| 3,500 GB/s" in lines[4]
    assert len({line.replace(r"\|", "").count("|") for line in lines[:7]}) == 1


def test_json_has_every_figure() -> None:
    first, second = json.loads(json_report(RESULTS))["parts"]
    assert first["rows"][0]["figures"] == {"milliseconds": 0.25}
    assert (second["name"], second["rows"]) == ("memory", [])


def test_settings_travel_as_json() -> None:
    assert Settings.from_json(TINY.to_json()) == TINY
    assert Settings.from_json(Settings().to_json()) == Settings()


def test_the_command_line_chooses_parts_and_sizes() -> None:
    arguments = command.parse(["--array-mib", "64", "--no-compile", "--tests-matching", "rope", "--device", "cuda:1"])
    settings = command.settings_of(arguments)
    assert settings.array_bytes == 64 << 20
    assert not settings.compile_model
    assert settings.tests[:2] == ("-k", "rope")
    assert settings.device == settings.torch_device == "cuda:1"


def test_limits_of_the_parts_fit_eight_minutes_with_those_that_end_early() -> None:
    assert command.DEFAULT_SECONDS < 480
    assert [part.name for part in PARTS][:2] == ["machine", "tests"]
    assert sum(part.limit for part in PARTS if part.name != "tests") <= command.DEFAULT_SECONDS


def importing(*missing: str) -> Callable[[str], None]:
    """Return imports of which some fail."""

    def import_module(name: str) -> None:
        if name in missing:
            raise ImportError(f"No module named {name!r}")

    return import_module


def test_everything_that_is_missing_is_said_at_once() -> None:
    found = requirements.check(importing("pydantic", "safetensors", "cupy", "torch", "hypothesis"))
    assert found.obstacle is not None
    assert "pydantic: ImportError" in found.obstacle
    assert "pip install --target carried --only-binary=:all:" in found.obstacle
    assert "'pydantic>=2.9' 'safetensors>=0.5' 'hypothesis>=6.115'" in found.obstacle
    assert "PYTHONPATH=../carried python -m benchmarks.gpu_check" in found.obstacle
    assert "cupy-cuda13x" in found.obstacle
    assert found.missing == ("hypothesis", "torch")


def test_what_is_only_compared_may_be_missing() -> None:
    found = requirements.check(importing("torch"))
    assert found.obstacle is None
    assert found.missing == ("torch",)
    assert [remark for remark in found.remarks if "nothing is compared with PyTorch" in remark]


def test_old_packages_are_remarked() -> None:
    (remark,) = requirements.find_old({"numpy": "numpy>=99.0"}, ["numpy"])
    assert remark == f"numpy {np.__version__} is older than 99.0, which Mila asks for"


def test_without_what_is_needed_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements, "check", lambda: requirements.Check("no cupy here", ("old",), ()))
    assert command.main([]) == 2
    assert capsys.readouterr().err == "old\nno cupy here\n"


def test_without_a_device_nothing_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(requirements, "check", lambda: requirements.Check(None, (), ()))
    monkeypatch.setattr(requirements, "missing_device", lambda name: f"{name}: found no CUDA device")
    assert command.main([]) == 2
    assert capsys.readouterr().err == "cuda:0: found no CUDA device\n"


class DriverError(RuntimeError):
    """What CuPy's runtime raises."""


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("cuda:0", 1, None),
        ("cuda:1", 1, "cuda:1: does not exist on this machine, which has 1 CUDA devices"),
        ("cuda:0", None, "cuda:0: found no CUDA device or driver on this machine (no driver)"),
    ],
)
def test_a_device_that_is_missing_is_named(name: str, count: int | None, expected: str | None) -> None:
    def count_devices() -> int:
        if count is None:
            raise DriverError("no driver")
        return count

    runtime = SimpleNamespace(getDeviceCount=count_devices, CUDARuntimeError=DriverError)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    assert requirements.missing_device(name, lambda package: cupy) == expected


def test_a_run_writes_its_files_and_answers_with_its_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: Iterator[Row] = iter([Row("fine", "1 s", ratio=1.0, goal=1.0), Row("slow", "9 s", ratio=0.5, goal=1.0)])

    def launch(part: Part, settings: Settings, seconds: float, take_row: TakeRow) -> str:
        take_row(next(rows))
        return "finished"

    monkeypatch.setattr(requirements, "check", lambda: requirements.Check(None, (), ()))
    monkeypatch.setattr(requirements, "missing_device", lambda name: None)
    monkeypatch.setattr(command, "launch_process", launch)
    files = ["--markdown", str(tmp_path / "table.md"), "--json", str(tmp_path / "table.json")]
    assert [command.main(["--only", name, *files]) for name in ("machine", "memory")] == [0, 1]
    assert "goals met: 0 of 1" in capsys.readouterr().out
    assert "slow" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "table.json").read_text())["parts"][0]["rows"][0]["ratio"] == 0.5
