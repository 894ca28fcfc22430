"""A checkpoint to go on from, and to damage copies of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.tiny_run import run_until


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After four steps."""
    folder = tmp_path_factory.mktemp("runs") / "four"
    run_until(folder, 4)
    return folder / "step-00000004"


@pytest.fixture
def a_copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
