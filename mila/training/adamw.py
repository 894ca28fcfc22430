"""AdamW (Loshchilov & Hutter 2019) with clipping by global norm, in flat passes over the arenas."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mila.components import LayerNorm, LearnedPositionEncoding, RmsNorm, TokenEmbedding
from mila.core import Component
from mila.errors import ConfigurationError
from mila.kernels.signatures import Array, Kernels
from mila.memory.declarations import Declaration
from mila.memory.storage import DType

FIRST_MOMENT = "first_moment"
SECOND_MOMENT = "second_moment"
#: Above this, one step moves float32 parameters towards what they cannot hold.
_LARGEST_RATE = 1e6


class AdamWConfig(BaseModel):
    """Config of :class:`AdamW`.

    Attributes:
        beta1, beta2: decay of the moments.
        epsilon: added to the root of the second moment.
        weight_decay: of weights that decay: matrices of projections, neither norms, biases nor embeddings.
        decay_everything: weight decay for norms, biases and embeddings too.
        maximum_norm: gradients are scaled down to this global norm; not at all by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    decay_everything: bool = False
    maximum_norm: float | None = Field(default=None, gt=0)


class AdamW:
    """Decoupled weight decay, bias-corrected moments; the moments are part of the plan of a ``TrainingStep``."""

    def __init__(self, config: AdamWConfig | None = None) -> None:
        self.config = config if config is not None else AdamWConfig()

    @property
    def moment_names(self) -> tuple[str, ...]:
        """``first_moment`` and ``second_moment``, stored divided by 1 - beta1 and 1 - beta2."""
        return (FIRST_MOMENT, SECOND_MOMENT)

    def workspace_elements(self, kernels: Kernels, elements: int, dtype: DType) -> int:
        """Elements of workspace."""
        return kernels.adamw_workspace(elements, dtype)

    def decay_of(self, component: Component[Any], declaration: Declaration) -> float:
        """Weight decay of one parameter."""
        keeps = isinstance(component, LayerNorm | RmsNorm | TokenEmbedding | LearnedPositionEncoding)
        if not self.config.decay_everything and (keeps or len(declaration.shape) < 2):
            return 0.0
        return self.config.weight_decay

    def apply(
        self,
        kernels: Kernels,
        segments: list[tuple[int, int, float]],
        parameters: Array,
        gradients: Array,
        moments: dict[str, Array],
        workspace: Array,
        learning_rate: float,
        step: int,
    ) -> float:
        """Clip and step; returns the norm before clipping, and changes nothing where that is not finite."""
        if not 0 <= learning_rate <= _LARGEST_RATE:
            raise ConfigurationError(
                f"learning rate: expected a number from 0 to {_LARGEST_RATE:g}, got {learning_rate}"
            )
        config = self.config
        norm = kernels.global_norm(gradients)
        if not math.isfinite(norm):
            return norm
        clip = config.maximum_norm is not None and norm > config.maximum_norm
        factor = config.maximum_norm / norm if clip and config.maximum_norm is not None else 1.0
        for start, stop, weight_decay in segments:
            kernels.adamw(
                parameters[start:stop],
                moments[FIRST_MOMENT][start:stop],
                moments[SECOND_MOMENT][start:stop],
                gradients[start:stop],
                learning_rate,
                config.beta1,
                config.beta2,
                config.epsilon,
                weight_decay,
                step,
                factor,
                workspace,
            )
        return norm
