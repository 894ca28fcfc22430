"""The device that all promises are tested on."""

from __future__ import annotations

import pytest

from mila.devices import ExecutionContext


@pytest.fixture(scope="session")
def device() -> ExecutionContext:
    """Return one context for all components: two threads, so that rows are split."""
    return ExecutionContext("cpu", threads=2)
