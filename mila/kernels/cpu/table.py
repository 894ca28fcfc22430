"""All CPU kernels in one object."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.kernels.cpu.arithmetic import CpuArithmetic
from mila.kernels.cpu.attention import CpuAttention
from mila.kernels.cpu.context_attention import CpuContextAttention
from mila.kernels.cpu.dropout import CpuDropout
from mila.kernels.cpu.embedding import CpuEmbedding
from mila.kernels.cpu.experts import CpuExperts
from mila.kernels.cpu.head_norm import CpuHeadNorm
from mila.kernels.cpu.layer_scale import CpuLayerScale
from mila.kernels.cpu.linear import CpuLinear
from mila.kernels.cpu.loss import CpuLoss
from mila.kernels.cpu.normalization import CpuNormalization
from mila.kernels.cpu.optimizer import CpuOptimizer
from mila.kernels.cpu.rope import CpuRope
from mila.kernels.cpu.shapes import CpuShapes
from mila.kernels.cpu.single_row import CpuSingleRow
from mila.kernels.cpu.softmax import CpuSoftmax
from mila.kernels.cpu.tokens import CpuTokens
from mila.kernels.cpu.widening import NARROW
from mila.kernels.cpu.workers import Workers

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class CpuKernels(
    CpuDropout,
    CpuArithmetic,
    CpuLayerScale,
    CpuLinear,
    CpuNormalization,
    CpuHeadNorm,
    CpuSoftmax,
    CpuEmbedding,
    CpuAttention,
    CpuContextAttention,
    CpuRope,
    CpuLoss,
    CpuOptimizer,
    CpuShapes,
    CpuSingleRow,
    CpuTokens,
    CpuExperts,
):
    """``Kernels`` in NumPy, on ``threads`` threads. One object may serve several networks and several user threads."""

    #: Stored dtypes of networks that the CPU computes.
    dtypes: tuple[np.dtype[Any], ...] = (FLOAT32, FLOAT64, *NARROW)
    #: NumPy's own limit.
    most_axes = 64

    def __init__(self, threads: int) -> None:
        """Use ``threads`` threads for every kernel, BLAS included; the threads start when first needed."""
        super().__init__(Workers(threads))

    def compute_dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Float32 for bfloat16 and float16, else ``stored`` itself."""
        return FLOAT32 if stored in NARROW else stored

    def unordered(self) -> CpuKernels:
        """These kernels: the order of every sum is fixed."""
        return self
