"""What ``with`` does with things that are open: close them, or finish or abort them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ClosedAfterBlock(ABC):
    """Closed at the end of a ``with`` block, however it ends."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open; nothing happens the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class FinishedAfterBlock(ABC):
    """Finished at the end of a ``with`` block, or aborted where the block raises."""

    @abstractmethod
    def finish(self) -> None:
        """Make what was written visible, whole."""

    @abstractmethod
    def abort(self) -> None:
        """Leave what was there before; nothing happens where it was finished."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()
