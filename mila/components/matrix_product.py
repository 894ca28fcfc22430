"""Matrix products of two inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mila.core import ComponentConfig, ComponentType, LeafContext, Overwrite, Port, Run
from mila.core.component import Component
from mila.core.shapes import require_rank
from mila.errors import ShapeError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


class MatrixProductConfig(ComponentConfig):
    """Nothing to say."""


class MatrixProduct(Component[MatrixProductConfig]):
    """``a @ b``: (B, N, K) and (B, K, M) to (B, N, M), one product per row of the batch."""

    config_class = MatrixProductConfig
    component_type = ComponentType.MATRIX_PRODUCT
    ports = (Port("a"), Port("b"))
    reads: ClassVar[tuple[str, ...]] = ("a", "b")
    required_kernels = ("matrix_product_forward", "matrix_product_backward")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, N, K) and (B, K, M) to (B, N, M)."""
        a = require_rank(self, context.input_shapes[0], "B, N, K")
        b = require_rank(self, context.input_shapes[1], "B, K, M")
        if a[0] != b[0] or a[2] != b[1]:
            raise ShapeError(f"{self.path}: expected inputs of shapes (B, N, K) and (B, K, M), got {a} and {b}")
        return ((a[0], a[1], b[2]),)

    @property
    def accepts_prefill_size(self) -> bool:
        """Axis 1 of ``b`` is summed over."""
        return False

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The gradient of ``a`` goes over ``a``, which nothing reads after that of ``b``, where the graph allows it."""
        yield output(self.output_shapes(context)[0], context.dtype)
        if context.is_training:
            a, b = context.input_shapes
            over = None if context.overwritable[0] is Overwrite.NEVER else Over.INPUT
            yield gradient("a", a, context.dtype, over=over)
            yield gradient("b", b, context.dtype, port=1)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Multiply."""
        a, b = inputs
        result = self.view("output", (a.shape[0], a.shape[1], b.shape[2]))
        self.kernels.matrix_product_forward(result, a, b)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """``da = dy b^T``, ``db = a^T dy``."""
        a, b = inputs
        da, db = self.view("a.gradient", a.shape), self.view("b.gradient", b.shape)
        self.kernels.matrix_product_backward(da, db, gradients[0], a, b)
        return da, db
