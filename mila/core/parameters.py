"""Gradients of parameters, where the first contribution overwrites and later ones add."""

from __future__ import annotations

from mila.kernels.signatures import Array


class ParameterGradient:
    """The gradient of one parameter.

    ``zero_gradients`` only marks: the next contribution overwrites, which saves a pass over memory per step.
    """

    __slots__ = ("_array", "_is_zero")

    def __init__(self, array: Array) -> None:
        self._array = array
        self._is_zero = True

    @property
    def is_zero(self) -> bool:
        """Whether the zeros are still pending."""
        return self._is_zero

    def mark_zero(self) -> None:
        """From now on the gradient is zero, whatever its bytes hold."""
        self._is_zero = True

    def read(self) -> Array:
        """The gradient, zeros written if they are still pending."""
        if self._is_zero:
            self._array.fill(0)
            self._is_zero = False
        return self._array

    def contribute(self) -> tuple[Array, bool]:
        """Where to put a contribution, and whether to add it (``True``) or to overwrite."""
        accumulate = not self._is_zero
        self._is_zero = False
        return self._array, accumulate
