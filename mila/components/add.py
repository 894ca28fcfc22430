"""Sums of two inputs."""

from __future__ import annotations

from mila.components.pairwise import Pairwise
from mila.core import ComponentConfig, ComponentType, Run
from mila.kernels.signatures import Array


class AddConfig(ComponentConfig):
    """Nothing to say."""


class Add(Pairwise[AddConfig]):
    """``a + b`` of one shape."""

    config_class = AddConfig
    component_type = ComponentType.ADD
    required_kernels = ("residual_forward", "copy")

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Add."""
        a, b = inputs
        result = self.view("output", a.shape)
        self.kernels.residual_forward(result, a, b, 1.0)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """The gradient to both."""
        (dy,) = gradients
        da, db = self.view("a.gradient", dy.shape), self.view("b.gradient", dy.shape)
        self.kernels.copy(db, dy)
        self.kernels.copy(da, dy)
        return da, db
