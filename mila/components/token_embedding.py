"""Token embeddings: one row of a table per id, stored plainly or as FP8 with one scale per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from mila.components.token_ids import check_token_ids
from mila.core import ComponentType, LeafContext, ParameterizedConfig, Port, Run
from mila.core.component import Component
from mila.core.initializers import normal, ones, zeros
from mila.core.shapes import require_rank
from mila.core.state import Rows, refuse_conversion, row_blocks
from mila.errors import LifecycleError
from mila.kernels.signatures import Array
from mila.memory.declarations import Declaration, Lifetime, output, parameter, workspace
from mila.memory.storage import FLOAT8_E4M3, FLOAT32, DType, Shape
from mila.quantization import PerChannelFp8, quantize_rows, rows_are_finite, scales_are_usable


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
        "first_outside",
        "embedding_forward",
        "embedding_forward_narrow",
        "embedding_backward",
        "embedding_backward_narrow",
    )
    #: Whether the scales were computed here, from a float table, and not loaded.
    _scales_are_derived = False
    #: The other half of a pair of FP8 bytes and scales of which one was loaded.
    _awaited: str | None = None

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
            yield parameter("wte_scale", shape[:1], FLOAT32, ones, trainable=False, companion_of="wte")
        else:
            deviation = self.config.initial_std or self.embedding_dim**-0.5
            yield parameter("wte", shape, self.dtype, normal(deviation), trainable=self.config.trainable)

    def takes_stored(self, parameter: str) -> bool:
        """The table."""
        return parameter == "wte"

    def adds_to_stored(self, parameter: str) -> bool:
        """The table."""
        return parameter == "wte"

    def check_build(self, context: LeafContext) -> None:
        """Quantized tables have no gradient."""
        if self.is_quantized and context.is_training:
            raise LifecycleError(f"{self.path}: a quantized table is for inference, got RuntimeMode.TRAINING")

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """(B, T) to (B, T, C)."""
        return ((*require_rank(self, context.input_shape, "B, T"), self.embedding_dim),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """The output; what rows of a table that is stored in less are widened in; what its gradient needs besides."""
        yield output((*context.input_shape, self.embedding_dim), context.dtype)
        rows, kernels = context.input_shape[0] * context.input_shape[1], context.kernels
        if self.is_quantized or self.dtype != context.dtype:
            size = kernels.embedding_forward_narrow_workspace(rows, self.embedding_dim)
            yield workspace("workspace", (size,), context.statistics_dtype, during=Lifetime.FORWARD)
        if context.is_training:
            is_narrow = self.dtype != context.dtype
            of_backward = (
                kernels.embedding_backward_narrow_workspace if is_narrow else kernels.embedding_backward_workspace
            )
            size = of_backward(rows, self.embedding_dim)
            yield workspace("backward_workspace", (size,), context.statistics_dtype, during=Lifetime.BACKWARD)

    def forward_step(self, run: Run, *inputs: Array) -> Array:
        """Gather rows."""
        (ids,) = inputs
        check_token_ids(self, "id", ids, self.vocab_size)
        result = self.view("output", (*ids.shape, self.embedding_dim))
        table, scale = self.parameter_array("wte"), self.config.embedding_scale
        if table.dtype == result.dtype:
            self.kernels.embedding_forward(result, table, ids, scale)
        else:
            scales = self.parameter_array("wte_scale") if self.is_quantized else None
            self.kernels.embedding_forward_narrow(result, table, scales, ids, scale, self.workspace())
        return result

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        """Scatter-add into the table's gradient; ids have none."""
        table_gradient = self.parameter_gradient("wte")
        if table_gradient is not None:
            check_token_ids(self, "id", inputs[0], self.vocab_size)
            (target, accumulate), (dy,), (ids,) = table_gradient.contribute(), gradients, inputs
            scale, scratch = self.config.embedding_scale, self.workspace("backward_workspace")
            if target.dtype == dy.dtype:
                self.kernels.embedding_backward(target, dy, ids, scale, accumulate, scratch)
            else:
                self.kernels.embedding_backward_narrow(target, dy, ids, scale, accumulate, scratch)
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

    def refuse_load(
        self, declaration: Declaration, dtype: DType, together: Mapping[str, DType | None] | None
    ) -> str | None:
        """FP8 bytes need their scales, and scales need FP8 bytes."""
        if not self.is_quantized:
            return super().refuse_load(declaration, dtype, together)
        if declaration.name == "wte_scale":
            has_bytes = not self._scales_are_derived if together is None else together.get("wte") == FLOAT8_E4M3
            return refuse_conversion(dtype, FLOAT32) if has_bytes else "scales without the float8 bytes that they scale"
        if dtype == FLOAT8_E4M3:
            has_scales = together is None or "wte_scale" in together
            return None if has_scales else "float8 bytes without wte_scale mean nothing"
        return refuse_conversion(dtype, self.dtype)

    def refuse_values(self, declaration: Declaration, values: Rows) -> str | None:
        """Rows to quantize must be finite."""
        if declaration.name == "wte_scale":
            usable = all(scales_are_usable(block) for _, block in row_blocks(values))
            return None if usable else "has scales that are not finite and positive"
        if declaration.dtype != FLOAT8_E4M3 or values.dtype == FLOAT8_E4M3:
            return super().refuse_values(declaration, values)
        finite = all(rows_are_finite(block) for _, block in row_blocks(values))
        return None if finite else "has values that are not finite and cannot be quantized"

    def store_parameter(self, declaration: Declaration, values: Rows) -> None:
        """Quantize floats; take FP8 bytes and scales as they are."""
        if declaration.dtype != FLOAT8_E4M3 or values.dtype == FLOAT8_E4M3:
            super().store_parameter(declaration, values)
            return
        table, scales = self.parameter_array("wte"), self.parameter_array("wte_scale")
        for start, block in row_blocks(values):
            rows = slice(start, start + len(block))
            quantized, own_scales = quantize_rows(block)
            self.device.upload(table[rows], quantized)
            self.device.upload(scales[rows], own_scales)
        self._scales_are_derived, self._awaited = True, None
        for name in ("wte", "wte_scale"):
            self._missing.pop(self.state_name(name), None)

    def parameter_stored(self, declaration: Declaration) -> None:
        """FP8 bytes and scales come in pairs: whichever comes first makes the network wait for the other."""
        super().parameter_stored(declaration)
        if not self.is_quantized:
            return
        self._scales_are_derived = False
        if self._awaited == declaration.name:
            self._awaited = None
        else:
            self._awaited = "wte_scale" if declaration.name == "wte" else "wte"
            self._missing[self.state_name(self._awaited)] = None
