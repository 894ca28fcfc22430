"""A program that saves over and over, each time in a process that kills itself at the next operation on files.

``python killed_writer.py KIND FOLDER``: leaves ``FOLDER/<position>/target`` for every operation, and prints, for each,
the operation at which the process was killed. The last line is ``none``: that process came to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mila.serialization import ArchiveMode, ExportFolder, ModelArchive, filesystem, save_tensors

OPERATIONS = [name for name, value in vars(filesystem).items() if callable(value) and name.islower() and name[0] != "_"]


def save(kind: str, path: Path, value: float) -> None:
    """Save a file, an archive or an export of two shards that holds one value."""
    array = np.full(20_000 if kind == "export" else 1_000_000, value, np.float32)
    if kind == "file":
        save_tensors(path, {"a": array})
        return
    if kind == "export":
        with ExportFolder(path) as folder, folder.tensors(array.nbytes // 2) as writer:
            for name in "ab":
                writer.declare(name, np.float32, (array.size // 2,))
            writer.begin()
            for name, half in zip("ab", np.split(array, 2), strict=True):
                writer.write(name, half)
        return
    with ModelArchive.create(path, ArchiveMode.CHECKPOINT, sequence=1) as archive:
        archive.write_tensors("weights", [("a", np.float32, array.shape)], lambda writer: writer.write("a", array))


def kill_at(position: int, report: int) -> None:
    """Kill this process for real at an operation, after saying which it is."""
    count = 0

    def wrap(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            if count == position:
                os.write(report, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return operation(*arguments)

        return call

    for name in OPERATIONS:
        setattr(filesystem, name, wrap(name, getattr(filesystem, name)))


def main(kind: str, folder: Path) -> None:
    """Run one process for each operation until one is not killed."""
    fired = "start"
    position = 0
    while fired != "none":
        path = folder / str(position) / "target"
        path.parent.mkdir()
        save(kind, path, 1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            kill_at(position, writing)
            save(kind, path, 2)
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        fired = os.read(reading, 100).decode() or "none"
        os.close(reading)
        print(fired)
        position += 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
