"""Processes that are really killed, and disks that are really full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mila.errors
from mila.serialization import ModelArchive, SafetensorsFile, open_tensors, save_tensors
from tests.serialization.folders import names_in

HERE = Path(__file__).parent


def run(program: str, *arguments: str) -> list[str]:
    """Run a program of this folder with the mila that is tested, and return the lines that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(mila.errors.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(HERE / program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def load(kind: str, path: Path) -> float:
    if kind == "file":
        with SafetensorsFile(path) as file:
            values = np.unique(file.read("a"))
    elif kind == "export":
        with open_tensors(path) as source:
            values = np.unique([source.read("a"), source.read("b")])
    else:
        with ModelArchive.open(path) as archive:
            archive.verify()
            with archive.open_tensors("weights") as file:
                values = np.unique(file.read("a"))
    assert values.size == 1
    return float(values[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("kind", ["file", "archive", "export"])
def test_a_process_killed_at_any_operation_leaves_the_old_or_the_new(tmp_path: Path, kind: str) -> None:
    killed_at = run("killed_writer.py", kind, str(tmp_path))
    assert len(killed_at) > 10
    found = [load(kind, tmp_path / str(position) / "target") for position in range(len(killed_at))]
    assert set(found) == {1.0, 2.0}
    assert found == sorted(found), "once the new one is in place it stays"
    assert found[-1] == 2.0
    if kind == "file":
        for position in range(len(killed_at)):
            save_tensors(tmp_path / str(position) / "target", {"a": np.zeros(1, np.float32)})
            assert names_in(tmp_path / str(position)) == ["target"], killed_at[position]


def test_a_full_disk_is_one_clear_error_and_the_old_file_stays(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.ones(3, np.float32)})
    before = path.read_bytes()
    lines = run("limited_writer.py", str(path))
    assert len(lines) == 1
    assert lines[0].startswith(f"{path}: could not be written")
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["a.safetensors"]
