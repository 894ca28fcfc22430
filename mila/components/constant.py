"""A value of its own for every row of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field, PositiveInt

from mila.core import ComponentConfig, ComponentType, LeafContext, Port, Run
from mila.core.component import Component
from mila.devices import DeviceId
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, output
from mila.memory.storage import DType, Shape


class ConstantConfig(ComponentConfig):
    """Config of :class:`Constant`.

    Attributes:
        shape: of the output, without the batch.
        value: of every element.
        takes_ids: whether the input, of which only the batch is used, holds ids instead of activations.
    """

    shape: tuple[PositiveInt, ...] = Field(min_length=1)
    value: float = 0.0
    takes_ids: bool = False


class Constant(Component[ConstantConfig]):
    """``value`` in the shape (B, *shape), for an input of any shape (B, …); the input has no gradient."""

    config_class = ConstantConfig
    component_type = ComponentType.CONSTANT
    required_kernels = ("fill",)

    def __init__(
        self,
        name: str,
        config: ConstantConfig | None = None,
        *,
        device: str | DeviceId | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name, config, device=device, dtype=dtype, seed=seed)
        self.ports = (Port("input", is_ids=self.config.takes_ids),)

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """The input's batch and the config's shape."""
        return ((context.input_shape[0], *self.config.shape),)

    @property
    def accepts_prefill_size(self) -> bool:
        """The shape is one of the whole, not of a chunk."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The output."""
        yield output(self.output_shapes(context)[0], context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Fill."""
        result = self.view("output", (inputs[0].shape[0], *self.config.shape))
        self.kernels.fill(result, self.config.value)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Nothing depends on the input's values."""
        return (None,)
