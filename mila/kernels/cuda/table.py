"""All CUDA kernels in one object."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.kernels.cuda.activations import CudaActivations
from mila.kernels.cuda.arithmetic import CudaArithmetic
from mila.kernels.cuda.attention import CudaAttention
from mila.kernels.cuda.attention_cached import CudaAttentionCached
from mila.kernels.cuda.axes import MOST_AXES
from mila.kernels.cuda.context_attention import CudaContextAttention
from mila.kernels.cuda.embedding import CudaEmbedding
from mila.kernels.cuda.experts import CudaExperts
from mila.kernels.cuda.loss import CudaLoss
from mila.kernels.cuda.optimizer import CudaOptimizer
from mila.kernels.cuda.rope import CudaRope
from mila.kernels.cuda.shapes import CudaShapes
from mila.kernels.cuda.single_row import CudaSingleRow
from mila.kernels.cuda.softmax import CudaSoftmax
from mila.kernels.cuda.tokens import CudaTokens


class CudaKernels(
    CudaSingleRow,  # first: some of the others are its bases
    CudaActivations,
    CudaArithmetic,
    CudaShapes,
    CudaTokens,
    CudaEmbedding,
    CudaExperts,
    CudaOptimizer,
    CudaLoss,
    CudaSoftmax,
    CudaRope,
    CudaAttention,
    CudaAttentionCached,
    CudaContextAttention,
):
    """``Kernels`` in CUDA C++. One object may serve several networks."""

    #: Axes of the arrays that kernels take.
    most_axes = MOST_AXES

    def compute_dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """``stored`` itself: kernels read and write it, and compute in float32."""
        return stored

    def unordered(self) -> CudaKernels:
        """These kernels, where the gradients of float32 token tables are added up by atomic additions."""
        return CudaKernels(self.launcher, deterministic=False)
