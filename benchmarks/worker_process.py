"""A worker of a benchmark: a process of its own that reads one JSON command per line and answers each with one line.

While it waits it sleeps, so that the thread pools of the sides that are compared never compete.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

#: Seconds between turns, in which the threads of the side that has just run fall asleep.
PAUSE = 0.3
_TIMEOUT_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"


def mila_environment(timeout: str) -> dict[str, str]:
    """This process's environment with OpenBLAS's timeout set, or ``unset``."""
    environment = {name: value for name, value in os.environ.items() if name != _TIMEOUT_VARIABLE}
    return environment if timeout == "unset" else environment | {_TIMEOUT_VARIABLE: timeout}


class WorkerProcess:
    """A worker and the pipe to it.

    Args:
        module: what is run, with ``side`` and ``arguments``; it first prints a line that says it is ready.
    """

    def __init__(self, module: str, side: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.side = side
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, side, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._read()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        if self._process.stdin is None:
            raise RuntimeError(f"the {self.side} worker has no input")
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"the {self.side} worker ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
