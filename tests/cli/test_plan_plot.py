"""Plans and sweeps as pictures, by matplotlib."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from mila.cli.plan_plot import check_plot, write_plot
from mila.errors import ConfigurationError
from mila.planning import PlanReport, SweepReport
from mila.planning.report import Outcome
from tests.planning.page_reports import inference_report, sweep_report, training_report

REPORTS: dict[str, PlanReport | SweepReport] = {
    "inference": inference_report(),
    "training, far below its budget": training_report(),
    "no budget": inference_report(budget=None),
    "a name of markup": inference_report(layers=3, target="$x_{$ <&>\x1b[2J"),
    "sweep": sweep_report(inference_report()),
    "sweep of one": sweep_report(inference_report()).model_copy(
        update={"points": sweep_report(inference_report()).points[:1]}
    ),
}
STARTS = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("name", REPORTS)
def test_a_picture_is_what_its_name_ends_in_and_the_same_every_time(name: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plan.{kind}"
    write_plot(REPORTS[name], file)
    first = file.read_bytes()
    assert first.startswith(STARTS[kind]) and len(first) > 2000
    write_plot(REPORTS[name], file)
    assert file.read_bytes() == first and [each.name for each in tmp_path.iterdir()] == [file.name]


def test_the_picture_of_a_plan_names_its_lines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(REPORTS["inference"], tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text("utf-8")
    for said in ("Parameters: 14.96 GiB", "Interpreter and libraries", "budget 16.00 GiB", "llama-3.1-8b does not fit"):
        assert said in text
    assert "Staging, on the host" not in text and "Optimizer moments" not in text


def test_the_picture_of_a_sweep_names_its_curves_and_cards(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(REPORTS["sweep"], tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text("utf-8")
    caption = "Needed: reserved by Mila, and what is counted elsewhere."
    for said in ("float32", "bfloat16", "card 24 GiB", "budget", "128k", "context", "fits", "does not fit", caption):
        assert f">{said}</text>" in text
    assert ">not known</text>" not in text


def test_the_points_of_a_sweep_are_where_its_verdicts_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At a budget between what is reserved and what is needed."""
    axes = pytest.importorskip("matplotlib.axes")
    drawn: list[tuple[list[float], Any]] = []
    original = axes.Axes.plot

    def record(self: Any, *arguments: Any, **options: Any) -> Any:
        drawn.append((list(arguments[1]), arguments[2] if len(arguments) > 2 else None))
        return original(self, *arguments, **options)

    monkeypatch.setattr(axes.Axes, "plot", record)
    sweep = sweep_report(inference_report())
    point = next(each for each in sweep.points if each.needed_bytes is not None)
    assert point.reserved_bytes is not None and point.needed_bytes is not None
    budget = point.needed_bytes - 1
    assert point.reserved_bytes < budget
    outcome = {True: Outcome.FITS, False: Outcome.DOES_NOT_FIT}
    points = [
        each.model_copy(update={"outcome": outcome[each.needed_bytes <= budget]})
        for each in sweep.points
        if each.needed_bytes is not None
    ]
    write_plot(sweep.model_copy(update={"budget_bytes": budget, "points": points}), tmp_path / "plan.svg")
    assert all(size > budget for sizes, marker in drawn for size in sizes if marker == "X")
    assert all(size <= budget for sizes, marker in drawn for size in sizes if marker == "o")
    assert any(sizes for sizes, marker in drawn if marker == "X")


def test_what_is_elsewhere_can_be_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = pytest.importorskip("matplotlib.axes")
    hatches: list[Any] = []
    original = axes.Axes.barh

    def record(self: Any, *arguments: Any, **options: Any) -> Any:
        hatches.append(options.get("hatch"))
        return original(self, *arguments, **options)

    monkeypatch.setattr(axes.Axes, "barh", record)
    report = inference_report(budget=64 << 30)
    lines = [each.model_copy(update={"bytes": 1 << 30, "is_counted": True}) for each in report.elsewhere]
    write_plot(report.model_copy(update={"elsewhere": lines}), tmp_path / "plan.svg")
    assert len({hatch for hatch in hatches if hatch is not None}) == len(lines) == 3
    assert "without CUDA context (not measured)" in (tmp_path / "plan.svg").read_text("utf-8")


def test_a_picture_replaces_its_kind_only(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    for name, content in (("plan.png", b"notes"), ("plan.svg", b"\x89PNG\r\n\x1a\n"), ("plan.pdf", b"<svg/>")):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"expected a free name or a .* to replace"):
            write_plot(REPORTS["inference"], file)
        assert file.read_bytes() == content
    file.write_bytes(b"")
    check_plot(file)
    with pytest.raises(
        ConfigurationError, match=r"expected a file that ends in \.png, \.svg or \.pdf .* got 'plan.jpg'"
    ):
        check_plot(tmp_path / "plan.jpg")


def test_a_sweep_without_numbers_has_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweep = sweep_report(inference_report()).model_copy(update={"varied": ["dtype"]})
    with pytest.raises(ConfigurationError, match="needs an option with numbers that varies, got dtype"):
        write_plot(sweep, tmp_path / "plan.png")
    assert not [*tmp_path.iterdir()]


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install matplotlib"):
        check_plot(tmp_path / "plan.png")
