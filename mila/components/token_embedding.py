"""Token embeddings: one row of a table per id, stored plainly or as FP8 with one scale per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field

from mila.components.token_ids import check_token_ids
from mila.core import ComponentType, LeafContext, ParameterizedConfig, Port, Run
from mila.core.component import Component
from mila.core.initializers import normal, zeros
from mila.core.shapes import require_rank
from mila.core.state import refuse_conversion
from mila.errors import ConfigurationError, LifecycleError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, output, parameter, workspace
from mila.memory.storage import FLOAT8_E4M3, FLOAT32, DType, Shape
from mila.quantization import PerChannelFp8, quantize_rows


class TokenEmbeddingConfig(ParameterizedConfig):
    """Config of :class:`TokenEmbedding`.

    Attributes:
        vocab_size: number of rows V.
        embedding_dim: their width C.
        embedding_scale: factor of every output row.
        initial_std: standard deviation of initial values; 1/sqrt(C) by default.
        table_quantization: how the table is stored; quantized tables are for inference.
    """

    vocab_size: int = Field(gt=0)
    embedding_dim: int = Field(gt=0)
    embedding_scale: float = Field(default=1.0, gt=0)
    initial_std: float | None = Field(default=None, gt=0)
    table_quantization: PerChannelFp8 | None = None


class TokenEmbedding(Component[TokenEmbeddingConfig]):
    """``output = wte[ids] * embedding_scale``: ids (B, T), int32 or int64, to (B, T, C)."""

    config_class = TokenEmbeddingConfig
    component_type = ComponentType.TOKEN_EMBEDDING
    ports = (Port("ids", is_ids=True),)
    reads: ClassVar[tuple[str, ...]] = ("ids",)
    is_per_position = True
    required_kernels = (
        "integer_range",
        "embedding_forward",
        "embedding_forward_per_channel",
        "embedding_backward",
    )

    @property
    def vocab_size(self) -> int:
        """Number of rows."""
        return self.config.vocab_size

    @property
    def embedding_dim(self) -> int:
        """Width of a row."""
        return self.config.embedding_dim

    @property
    def is_quantized(self) -> bool:
        """Whether the table is stored as FP8."""
        return self.config.table_quantization is not None

    def parameters(self) -> Iterator[Declaration]:
        """The table ``wte`` and, where it is quantized, ``wte_scale``."""
        shape = (self.vocab_size, self.embedding_dim)
        if self.is_quantized:
            yield parameter("wte", shape, FLOAT8_E4M3, zeros, trainable=False)
            yield parameter("wte_scale", shape[:1], FLOAT32, zeros, trainable=False, companion_of="wte")
        else:
            deviation = self.config.initial_std or self.embedding_dim**-0.5
            yield parameter("wte", shape, self.dtype, normal(deviation), trainable=self.config.trainable)

    def check_build(self, context: LeafContext) -> None:
        """Quantized tables have no gradient."""
        if self.is_quantized and context.is_training:
            raise LifecycleError(f"{self.path}: a quantized table is for inference, got RuntimeMode.TRAINING")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T) to (B, T, C)."""
        return ((*require_rank(self, context.input_shape, "B, T"), self.embedding_dim),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The output; for a quantized table a tile to widen rows in."""
        yield output((*context.input_shape, self.embedding_dim), context.dtype)
        if self.is_quantized:
            rows = context.input_shape[0] * context.input_shape[1]
            size = context.kernels.embedding_forward_per_channel_workspace(rows, self.embedding_dim)
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Gather rows."""
        (ids,) = inputs
        check_token_ids(self, "id", ids, self.vocab_size)
        result = self.view("output", (*ids.shape, self.embedding_dim))
        table, scale = self.parameter_array("wte"), self.config.embedding_scale
        if self.is_quantized:
            self.kernels.embedding_forward_per_channel(
                result, table, self.parameter_array("wte_scale"), ids, scale, self.workspace()
            )
        else:
            self.kernels.embedding_forward(result, table, ids, scale)
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Scatter-add into the table's gradient; ids have none."""
        table_gradient = self.parameter_gradient("wte")
        if table_gradient is not None:
            check_token_ids(self, "id", inputs[0], self.vocab_size)
            target, accumulate = table_gradient.contribute()
            self.kernels.embedding_backward(target, gradients[0], inputs[0], self.config.embedding_scale, accumulate)
        return (None,)

    # ------------------------------------------------------------------ sharing and quantization

    def get_weight_tensor_shared(self) -> Array:
        """The table itself, for a head that computes with it."""
        self.require_built("get_weight_tensor_shared")
        return self.parameter_array("wte")

    def get_weight_scales_tensor_shared(self) -> Array | None:
        """One scale per row of a quantized table; ``None`` otherwise."""
        self.require_built("get_weight_scales_tensor_shared")
        return self.parameter_array("wte_scale") if self.is_quantized else None

    def get_wte_grad(self) -> Array | None:
        """The gradient of the table; ``None`` on an inference build or where it is frozen."""
        self.require_built("get_wte_grad")
        table_gradient = self.parameter_gradient("wte")
        return None if table_gradient is None else table_gradient.read()

    def on_building(self, context: object) -> None:
        """A quantized table cannot be drawn: its values come from a file."""

    def refuse_load(self, declaration: Declaration, dtype: DType, names: Iterable[str]) -> str | None:
        """FP8 bytes need their scales, and scales need FP8 bytes."""
        if not self.is_quantized:
            return super().refuse_load(declaration, dtype, names)
        if declaration.name == "wte_scale":
            return refuse_conversion(dtype, FLOAT32)
        if dtype == FLOAT8_E4M3:
            return None if "wte_scale" in names else "float8 bytes without wte_scale mean nothing"
        return refuse_conversion(dtype, self.dtype)

    def store_parameter(self, declaration: Declaration, values: Array) -> None:
        """Quantize floats; take FP8 bytes and scales as they are."""
        if not self.is_quantized or declaration.name == "wte_scale" or values.dtype == FLOAT8_E4M3:
            super().store_parameter(declaration, values)
            return
        if not np.isfinite(values.astype(np.float32, copy=False)).all():
            raise ConfigurationError(f"{self.path}: a table with values that are not finite cannot be quantized")
        quantize_rows(self.parameter_array("wte"), self.parameter_array("wte_scale"), values)
        self._missing -= {"wte", "wte_scale"}
