"""Parameters: what an owner says about them, and their gradients, where the first contribution overwrites."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mila.errors import ConfigurationError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Initializer

_STATE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)


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


def check_state_names(path: str, names: Iterable[str], overrides: Mapping[str, ParameterOverride]) -> None:
    """Raise :class:`ConfigurationError` where parameters would have a name in files that is none, or one together."""
    owners: dict[str, str] = {}
    for name in names:
        override = overrides.get(name)
        state_name = name if override is None or override.state_name is None else override.state_name
        if state_name and not _STATE_NAME.fullmatch(state_name):
            raise ConfigurationError(f"{path}: expected letters, digits, '_' and '.' in a name, got {state_name!r}")
        if owners.setdefault(state_name, name) != name:
            both = f"{owners[state_name]!r} and {name!r}"
            raise ConfigurationError(f"{path}: parameters {both} would both be called {state_name!r}")


class ParameterGradient:
    """The gradient of one parameter.

    ``zero_gradients`` only marks: the next contribution overwrites, which saves a pass over memory per step.

    Args:
        array: the gradient.
        set_bytes: the device's way of writing zeros.
    """

    __slots__ = ("_array", "_is_zero", "_set_bytes")

    def __init__(self, array: Array, set_bytes: Callable[[Array, int], None]) -> None:
        self._array = array
        self._set_bytes = set_bytes
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
            self._set_bytes(self._array, 0)
            self._is_zero = False
        return self._array

    def contribute(self) -> tuple[Array, bool]:
        """Where to put a contribution, and whether to add it (``True``) or to overwrite."""
        accumulate = not self._is_zero
        self._is_zero = False
        return self._array, accumulate
