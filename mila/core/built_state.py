"""What a component is once it is built: its modes, and the arrays that its steps work on."""

from __future__ import annotations

import math
from typing import Any

from mila.core.context import BuildContext
from mila.core.identity import Identity
from mila.core.modes import RuntimeMode, TrainingMode
from mila.core.parameters import ParameterGradient
from mila.errors import LifecycleError
from mila.kernels.signatures import Array
from mila.memory.storage import DType, Shape


class BuiltState(Identity):
    """The part of a component that a build fills in."""

    def __init__(self, name: str, dtype: DType | type[Any] | str | None, seed: int | None) -> None:
        super().__init__(name, dtype, seed)
        self._build_context: BuildContext | None = None
        self._training_mode = TrainingMode.NORMAL
        self._arrays: dict[str, Array] = {}  # by the names that the leaf itself gave
        self._stored: dict[str, Array] = {}  # its parameters
        self._gradients: dict[str, ParameterGradient] = {}

    @property
    def is_built(self) -> bool:
        """Whether its buffers exist."""
        return self._build_context is not None

    @property
    def build_context(self) -> BuildContext | None:
        """What it was built for, with its own input shapes; ``None`` before build."""
        return self._build_context

    @property
    def runtime_mode(self) -> RuntimeMode | None:
        """What it was built for; ``None`` before build."""
        return None if self._build_context is None else self._build_context.runtime_mode

    @property
    def training_mode(self) -> TrainingMode | None:
        """The switch; ``EVAL`` on an inference build, ``None`` before build."""
        if self._build_context is None:
            return None
        return self._training_mode if self._build_context.is_training else TrainingMode.EVAL

    @property
    def is_training_mode(self) -> bool:
        """Whether it was built for training."""
        return self.runtime_mode is RuntimeMode.TRAINING

    @property
    def is_inference_mode(self) -> bool:
        """Whether it was built for inference."""
        return self.runtime_mode is RuntimeMode.INFERENCE

    @property
    def is_eval_mode(self) -> bool:
        """Whether the switch is at ``EVAL``."""
        return self.training_mode is TrainingMode.EVAL

    def require_built(self, call: str) -> None:
        """Raise :class:`LifecycleError` unless built."""
        if self._build_context is None:
            raise LifecycleError(f"{self.path}: {call} needs a built component; call build first")

    def view(self, name: str, shape: Shape) -> Array:
        """The first elements of an owned buffer, as an array of ``shape``."""
        flat = self._arrays[name]
        return flat[: math.prod(shape)].reshape(shape)

    def workspace(self, name: str = "workspace") -> Array:
        """A whole owned buffer, flat."""
        return self._arrays[name]

    def stored_parameter(self, name: str) -> Array:
        """A parameter in its own shape and dtype."""
        return self._stored[name]

    def parameter_array(self, name: str) -> Array:
        """A parameter in its own shape, as the steps compute with it: to be read by them only.

        Where the network is stored in less than it is computed in, it is a copy that means something during a step.
        """
        return self._arrays[name]

    def parameter_gradient(self, name: str) -> ParameterGradient | None:
        """The gradient of a parameter; ``None`` where it is frozen or the build is for inference."""
        return self._gradients.get(name)

    def contribute(self, *names: str) -> tuple[list[Array | None], bool]:
        """Where to put contributions to gradients of parameters, ``None`` where there is none, and whether to add.

        One answer serves all: where only some are still zero, their zeros are written.
        """
        gradients = [self._gradients.get(name) for name in names]
        if len({gradient.is_zero for gradient in gradients if gradient is not None}) > 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.read()
        pairs = [(None, False) if gradient is None else gradient.contribute() for gradient in gradients]
        return [array for array, _ in pairs], any(accumulate for _, accumulate in pairs)

    def has_buffer(self, name: str) -> bool:
        """Whether the build declared a buffer of this name."""
        return name in self._arrays
