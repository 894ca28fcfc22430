"""Plans and sweeps as pictures, by matplotlib."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from mila.cli.plan_plot import check_plot, write_plot
from mila.errors import ConfigurationError
from mila.planning import PlanReport, SweepReport
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
    for said in ("float32", "bfloat16", "card 24 GiB", "budget", "128k", "context"):
        assert f">{said}</text>" in text


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
