"""Built components of any device that take and give NumPy arrays."""

from __future__ import annotations

from typing import Any

from mila.core import Component
from mila.kernels.signatures import Array


class Hosted:
    """A component whose inputs and answers are NumPy arrays, whatever its device.

    Everything else is the component's own, its class too.
    """

    def __init__(self, component: Component[Any]) -> None:
        self._component = component
        self._device = component.device
        self._sent: dict[int, tuple[Array, Array]] = {}  # backward wants the arrays of the forward before it

    @property
    def __class__(self) -> type[Any]:
        return type(self._component)

    @__class__.setter
    def __class__(self, value: type[Any]) -> None:
        raise TypeError("a component keeps its class")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._component, name)
        if name not in _CALLS:
            return found
        return lambda *arguments, **named: self._brought(found(*map(self._taken, arguments), **named))

    def _taken(self, value: Any) -> Any:
        """The device's array of a NumPy array: the same one every time."""
        if not hasattr(value, "__array_interface__"):
            return value
        if id(value) not in self._sent:
            self._sent[id(value)] = value, self._device.to_device(value)
        return self._sent[id(value)][1]

    def _brought(self, value: Any) -> Any:
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*map(self._brought, value))
        if isinstance(value, tuple | list):
            return type(value)(map(self._brought, value))
        return self._device.download(value) if hasattr(value, "dtype") and value.ndim else value


#: What takes or gives arrays.
_CALLS = frozenset(("forward", "backward", "logits", "captured", "get_gradients", "get_parameters"))
