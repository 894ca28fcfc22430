"""A text to train on, and a run that was trained on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import TINY, mila_here, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = mila_here("train", text, "--out", folder, *TINY)
    assert result.exit_code == 0, result.output
    return folder
