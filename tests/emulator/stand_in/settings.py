"""How the stand-in runs kernels: chosen by tests, changed between two launches if they like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulator.module import FORWARD, Mode, Run

_chosen = [Run(Mode.FAST, FORWARD)]


def chosen_run() -> Run:
    """Return how the next kernel is compiled and in which order its threads run."""
    return _chosen[-1]


@contextmanager
def use(run: Run) -> Iterator[None]:
    """Run kernels that way inside the ``with`` statement."""
    _chosen.append(run)
    try:
        yield
    finally:
        _chosen.pop()
