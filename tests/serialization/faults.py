"""Makes chosen operations on files fail, or ends the writer at them as a kill would."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from mila.serialization import filesystem

OPERATIONS = (
    "create_file", "open_file", "create_folder", "write", "flush", "synchronize_file", "synchronize_path", "close",
    "change_mode", "replace", "rename", "exchange", "remove_file", "remove_tree", "list_folder", "lock",
)  # fmt: skip


class Kill(BaseException):
    """The end of the writer: no code of it runs any more, so every later operation raises it too."""


class Faults:
    """Counts the operations and lets the one at `position` fail: with an error once, or with a kill for good."""

    def __init__(self, position: int, error: int | None) -> None:
        self.position = position
        self.error = error
        self.count = 0
        self.fired: str | None = None
        self.log: list[tuple[str, str]] = []
        self.files: list[BinaryIO] = []
        self.locks: list[int] = []

    def wrap(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.error is None and self.fired is not None:
                raise Kill(name)
            if self.count == self.position:
                self.fired = name
                self.count += 1
                self.fail(name, arguments)
            self.count += 1
            self.log.append((name, str(getattr(arguments[0], "name", arguments[0]))))
            result = operation(*arguments)
            if name == "open_file":
                self.files.append(result)
            if name == "lock" and result is not None:
                self.locks.append(result)
            return result

        return call

    def fail(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            # A kill or a full disk stops in the midst of a write.
            file, content = arguments
            file.write(bytes(content)[: len(content) // 2])
        if self.error is None:
            raise Kill(name)
        raise OSError(self.error, os.strerror(self.error))

    def release(self) -> None:
        """Do what the system does when a process ends: close its files, and so give its locks back."""
        for file in self.files:
            file.close()
        if self.fired is not None and self.error is None:
            for descriptor in self.locks:
                try:
                    os.close(descriptor)
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise


@contextmanager
def faults(position: int, error: int | None, *, can_exchange: bool = True) -> Iterator[Faults]:
    """Let the operation number `position` fail with `error`, or kill where it is None."""
    plan = Faults(position, error)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            operation = getattr(filesystem, name)
            if name == "exchange" and not can_exchange:
                operation = cannot_exchange
            patch.setattr(filesystem, name, plan.wrap(name, operation))
        try:
            yield plan
        finally:
            plan.release()


def cannot_exchange(one: Path, other: Path) -> bool:
    return False
