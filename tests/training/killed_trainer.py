"""A program that goes on with a run over and over, each time in a process that kills itself at another file operation.

``python killed_trainer.py FOLDER`` prepares a run in ``FOLDER/start`` and copies it to ``FOLDER/<position>``, where it
takes one step and writes one checkpoint, until the process kills itself at that operation: every sixteenth, and all of
the last ones, which give the new checkpoint its name. It prints the operations; ``none`` for the process that was not
killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mila.serialization import filesystem

sys.path.append(str(Path(__file__).parents[2]))  # at the end: mila is the installed one
from tests.training import tiny_run

OPERATIONS = [name for name, value in vars(filesystem).items() if callable(value) and name.islower() and name[0] != "_"]
CHANGES: dict[str, Any] = {"checkpoint_every": 1, "keep_last": 1}


def in_a_process(work: Callable[[int], None]) -> str:
    """Run ``work``, which is given a pipe to write to, in a fork; return what it wrote."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(writing)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("the process failed before it was killed")
    written = os.read(reading, 1 << 16).decode()
    os.close(reading)
    return written


def watch(position: int, report: int) -> None:
    """Say each operation on files in one letter, or its name at ``position`` before killing this process for real."""
    count = 0

    def wrap(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            if count == position:
                os.write(report, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            if position < 0:
                os.write(report, b".")
            count += 1
            return operation(*arguments)

        return call

    for name in OPERATIONS:
        setattr(filesystem, name, wrap(name, getattr(filesystem, name)))


def go_on(folder: Path, position: int, report: int) -> None:
    """Take one more step; the operations count from the first that writes the checkpoint."""
    trainer = tiny_run.make_trainer(folder, **CHANGES)
    trainer.resume()
    watch(position, report)
    trainer.run(until=3)


def prepare(folder: Path, report: int) -> None:
    """Take the steps before those that are killed."""
    tiny_run.run_until(folder, 2, **CHANGES)


def main(folder: Path) -> None:
    """Run one process that comes to its end, then one for each chosen operation."""
    start = folder / "start"
    in_a_process(partial(prepare, start))
    chosen: list[int] = [-1]
    while chosen:
        position = chosen.pop(0)
        copy = folder / str(position)
        shutil.copytree(start, copy)
        said = in_a_process(partial(go_on, copy, position))
        if position < 0:
            count = len(said)
            chosen = sorted({*range(0, count, 16), *range(count - 14, count)})
        print("none" if position < 0 else said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
