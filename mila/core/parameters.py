"""Gradients of parameters, where the first contribution overwrites and later ones add."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Initializer


@dataclass(frozen=True, slots=True)
class ParameterOverride:
    """What the owner of a component says about one of its parameters; ``None`` leaves that as it is.

    Attributes:
        state_name: its name in files, instead of its own; empty: the path of the component alone.
        initializer: its initial values.
        trainable: ``False`` freezes it.
    """

    state_name: str | None = None
    initializer: Initializer | None = None
    trainable: bool | None = None

    def over(self, earlier: ParameterOverride) -> ParameterOverride:
        """This one, and what ``earlier`` says where this one says nothing."""
        return ParameterOverride(
            earlier.state_name if self.state_name is None else self.state_name,
            self.initializer or earlier.initializer,
            earlier.trainable if self.trainable is None else self.trainable,
        )

    def applied(self, declaration: Declaration) -> Declaration:
        """The declaration as the owner wants it."""
        return replace(
            declaration,
            initializer=self.initializer or declaration.initializer,
            trainable=declaration.trainable if self.trainable is None else self.trainable,
        )


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
