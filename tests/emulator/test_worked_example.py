"""The examples of specs/cuda_emulator.md run, as one program."""

from __future__ import annotations

import pytest

from tests.emulator.kernel_files import needs_emulator
from tests.emulator.nvrtc import missing_nvrtc
from tests.test_documentation import ROOT

PAGE = ROOT / "specs" / "cuda_emulator.md"


def blocks() -> list[str]:
    """They are marked ``py``: those marked ``python`` run on every machine, and these cannot."""
    parts = PAGE.read_text("utf-8").split("```py\n")[1:]
    return [part.split("```\n")[0] for part in parts]


@needs_emulator
@pytest.mark.skipif(missing_nvrtc() is not None, reason=missing_nvrtc() or "")
def test_the_page_s_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    program = "\n".join(blocks())
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "race: " in printed
    assert "row_sums.cu:9" in printed
    assert "sm_100" in printed


def test_there_are_examples() -> None:
    assert len(blocks()) == 3
