"""Differences of two inputs."""

from __future__ import annotations

from mila.components.pairwise import Pairwise
from mila.core import ComponentConfig, ComponentType, Run
from mila.kernels.signatures import Array


class SubtractConfig(ComponentConfig):
    """Nothing to say."""


class Subtract(Pairwise[SubtractConfig]):
    """``a - b`` of one shape."""

    config_class = SubtractConfig
    component_type = ComponentType.SUBTRACT
    required_kernels = ("subtract", "scale", "copy")

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Subtract."""
        a, b = inputs
        result = self.view("output", a.shape)
        self.kernels.subtract(result, a, b)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient to ``a``, its negative to ``b``."""
        (dy,) = gradients
        da, db = self.view("a.gradient", dy.shape), self.view("b.gradient", dy.shape)
        self.kernels.scale(db, dy, -1.0)
        self.kernels.copy(da, dy)
        return da, db
