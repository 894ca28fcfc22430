"""Kernels whose arrays begin one element into their memory, where vectors of 16 bytes may not be read or written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mila.kernels.signatures import Array
from tests.cuda.on_device import OnDevice


class Shifted:
    """Kernels that take NumPy arrays, of which some are moved one element on before every call, and brought back.

    Workspaces stay where they are: plans place them, at multiples of many elements.

    Args:
        kernels: The device's.
        which: Of the arrays of a call, in the order of their memory's first appearance; all if None.
    """

    def __init__(self, kernels: OnDevice, which: int | None = None) -> None:
        self._kernels = kernels
        self._which = which
        self.most_arrays = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kernels, name)
        return self._around(method) if callable(method) else method

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            moved: dict[int, tuple[Array, Array]] = {}
            given = inspect.signature(method).bind(*arguments, **named).arguments
            result = method(**{name: self._placed(name, value, moved) for name, value in given.items()})
            self.most_arrays = max(self.most_arrays, len(moved))
            for owner, copy in moved.values():
                owner[...] = copy
            return result

        return call

    def _placed(self, name: str, value: Any, moved: dict[int, tuple[Array, Array]]) -> Any:
        return value if name == "workspace" else self._moved(value, moved)

    def _moved(self, value: Any, moved: dict[int, tuple[Array, Array]]) -> Any:
        """The same part of a copy of the array's memory."""
        if not isinstance(value, np.ndarray):
            return value
        owner = value
        while isinstance(owner.base, np.ndarray) and owner.base.dtype == owner.dtype:
            owner = owner.base
        if id(owner) not in moved:
            shift = int(self._which in (None, len(moved)))
            copy = np.empty(shift + owner.size, owner.dtype)[shift:].reshape(owner.shape)
            copy[...] = owner
            moved[id(owner)] = owner, copy
        copy = moved[id(owner)][1]
        start = (value.ctypes.data - owner.ctypes.data) // value.dtype.itemsize if value.size else 0
        return copy.reshape(-1)[start : start + value.size].reshape(value.shape)
