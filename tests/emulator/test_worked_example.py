"""The examples of the pages about CUDA run: the blocks of each page, as one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.kernel_files import needs_emulator
from tests.emulator.nvrtc import ARCHITECTURES, missing_nvrtc
from tests.test_documentation import ROOT

SPECS = ROOT / "specs"
#: What each page's program prints, beside the machine code of every architecture.
PAGES = {
    SPECS / "cuda_emulator.md": ("race: ", "row_sums.cu:9"),
    SPECS / "cuda.md": ("race: write conflicts with read", "squared_relu.cu:11", "argument 2 is int32"),
}


def blocks(page: Path) -> list[str]:
    """They are marked ``py``: those marked ``python`` run on every machine, and these cannot."""
    parts = page.read_text("utf-8").split("```py\n")[1:]
    return [part.split("```\n")[0] for part in parts]


@needs_emulator
@pytest.mark.skipif(missing_nvrtc() is not None, reason=missing_nvrtc() or "")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_s_examples_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "\n".join(blocks(page))
    exec(compile(program, str(page), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    for text in (*PAGES[page], *ARCHITECTURES):
        assert text in printed


@pytest.mark.parametrize(("page", "count"), list(zip(PAGES, (3, 4), strict=True)), ids=str)
def test_there_are_examples(page: Path, count: int) -> None:
    assert len(blocks(page)) == count
