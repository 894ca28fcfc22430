"""A command on a terminal of its own: what is typed, and what is shown."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cli.commands import environment, mila_command

#: Runs in a session of its own: the terminal it opens becomes the one that Ctrl-C of it reaches.
_ATTACH = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.argv[1], sys.argv[1:])
"""

INTERRUPT, END = "\x03", "\x04"


class Terminal:
    """Runs ``mila`` on a pseudo-terminal of so many columns."""

    def __init__(self, *arguments: str | Path, columns: int = 20, rows: int = 12) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ATTACH, *mila_command(*arguments)],
            env=environment(TERM="xterm-256color", COLUMNS=str(columns)),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout: float = 40) -> None:
        """Read on until ``text`` is shown, after what was waited for before."""
        end = time.monotonic() + timeout
        while (place := self.shown.find(text, self._seen)) < 0:
            assert self._read(end) is not None, f"{text!r} was never shown: {self.shown[self._seen :][-200:]!r}"
        self._seen = place + len(text)

    def interrupt_until_end(self, pause: float = 1, presses: int = 20) -> int:
        """Press Ctrl-C, again where Python was just about to read: it learns of the first with the second then."""
        for _ in range(presses):
            with contextlib.suppress(OSError):  # nobody has the terminal open any more
                self.type(INTERRUPT)
            end = time.monotonic() + pause
            while self._read(end) is not None:
                pass
            if self._process.poll() is not None:
                break
        return self._process.wait(1)

    def finish(self, timeout: float = 40) -> int:
        """Read to the end; return the exit code."""
        end = time.monotonic() + timeout
        while self._read(end) is not None:
            pass
        return self._process.wait(timeout)

    def _read(self, end: float) -> str | None:
        """What is shown next; ``None`` at the end, and when it takes too long."""
        if not select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        try:
            piece = os.read(self._master, 4096).decode("utf-8", "replace")
        except OSError:  # Linux: nobody has the terminal open any more
            return None
        self.shown += piece
        return piece or None
