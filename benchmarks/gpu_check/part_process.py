"""A part in a process of its own: its rows come as lines, and at its last second it is killed.

So nothing that a part does to the device, be it a crash, a hang or memory that it keeps, reaches the others.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from benchmarks.gpu_check.rows import Row

TakeRow = Callable[[Row], None]
#: Lines of its errors that the report of a failed part gets.
_LAST_LINES = 3


def run_process(command: Sequence[str], environment: Mapping[str, str], seconds: float, take_row: TakeRow) -> str:
    """Run a command that prints one row as JSON per line; say how it ended.

    Args:
        command: with its arguments.
        environment: its variables.
        seconds: after which it is killed, with all processes that it started.
        take_row: gets each row as it comes.
    """
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(environment),
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            was_cut = not (_take_lines(process.stdout, end, take_row) and _has_ended(process, end))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # helpers of a compiler outlive their parent
            status = process.wait()
            process.stdout.close()
        if was_cut:
            return f"cut after {seconds:.0f} s"
        return "finished" if status == 0 else f"failed: {_last_lines(errors, status)}"


def _take_lines(stream: IO[str], end: float, take_row: TakeRow) -> bool:
    """Whether the stream ended in time."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with suppress(ValueError):  # closed while it was read
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return False
        if line is None:
            return True
        take_row(Row(**json.loads(line)))


def _has_ended(process: subprocess.Popen[str], end: float) -> bool:
    """Whether a process that prints no more ended in time."""
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _last_lines(errors: IO[str], status: int) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip(" ^~")]
    return " / ".join(lines[-_LAST_LINES:]) if lines else f"status {status}"
