"""What the emulator raises: before a kernel runs, and about what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class EmulatorError(Exception):
    """Anything wrong with a kernel, its launch or the order of its streams."""


class MissingToolError(EmulatorError):
    """The machine lacks a compiler or headers; the message says which and how to get them."""


class CompileError(EmulatorError):
    """A compiler refused the source; the message is the compiler's."""


class LaunchError(EmulatorError):
    """A launch that was refused before it began: arguments, grid, block or shared memory."""


class StreamError(EmulatorError):
    """Two uses of the same memory that no synchronisation or event orders."""


class Kind(StrEnum):
    """What a kernel did wrong."""

    RACE = "race"
    OUT_OF_BOUNDS = "out of bounds"
    USE_AFTER_FREE = "use after free"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised shared memory"
    DIVERGENT_BARRIER = "divergent barrier"
    BARRIER_AFTER_EXIT = "barrier after exit"
    WARP_OPERATION = "warp operation"
    DIVISION_BY_ZERO = "division by zero"
    STACK_OVERFLOW = "stack overflow"
    TIME_LIMIT = "time limit"
    TRAP = "trap"
    ASSERTION = "assertion"
    ILLEGAL_INSTRUCTION = "illegal instruction"
    INTERNAL = "internal error"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a kernel's source.

    Attributes:
        file: Its name.
        line: From 1 on.
        inner: Where the line calls a function of a header: the header's line that did it.
    """

    file: str
    line: int
    inner: Place | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" (through {self.inner})" if self.inner else "")


Index = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """One finding.

    Attributes:
        kind: What is wrong.
        message: The same in words, with sizes and the other side of a conflict.
        place: The line that did it; None if only the launch as a whole is known to be wrong.
        other_place: The line of the access that a racing access conflicts with.
        block: ``blockIdx`` of the thread, or None as above.
        thread: Its ``threadIdx``.
    """

    kind: Kind
    message: str
    place: Place | None
    other_place: Place | None
    block: Index | None
    thread: Index | None

    def __str__(self) -> str:
        text = f"{self.place}: " if self.place else ""
        text += f"{self.kind}: {self.message}"
        if self.other_place:
            text += f" (at {self.other_place})"
        if self.block and self.thread:
            text += f"; block {_index(self.block)}, thread {_index(self.thread)}"
        return text


class KernelError(EmulatorError):
    """A kernel that did something wrong, with everything that was found in one launch."""

    def __init__(self, kernel: str, reports: Sequence[Report]) -> None:
        super().__init__("\n  ".join([f"kernel {kernel}:", *map(str, reports)]))
        self.kernel = kernel
        self.reports = tuple(reports)


def _index(index: Index) -> str:
    return "({},{},{})".format(*index)
