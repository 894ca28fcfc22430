"""The one table of kernel signatures that every backend implements.

Conventions, for every kernel:

* outputs come first, then saved values, then inputs, then scalars, then ``workspace``;
* arrays are C-contiguous and belong to the backend; results are written in place, and no array of their size is made;
* runtime sizes come from the arrays, never from build time; rows are all leading axes flattened;
* ``accumulate=False`` overwrites an output gradient, ``True`` adds to it;
* ``workspace`` is a flat array of the compute dtype with at least the elements that the ``…_workspace`` function of the
  same name returns; that size depends on shapes alone, never on the number of threads, so that a plan is the same on
  every machine;
* the letters are B batch, T sequence, C model width, V vocabulary, N rows (leading axes flattened), H query heads,
  K key/value heads, D head size.

Ids and targets are int32 or int64; everything else has the dtype that the network is computed in
(``compute_dtype``), but for what a signature calls narrower: that has the dtype in which the network is stored.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mila.kernels.signatures.activation_function import ActivationFunction
from mila.kernels.signatures.arithmetic import ArithmeticKernels
from mila.kernels.signatures.arrays import Array
from mila.kernels.signatures.attention import AttentionKernels
from mila.kernels.signatures.context_attention import ContextAttentionKernels
from mila.kernels.signatures.elementwise import ElementwiseKernels
from mila.kernels.signatures.embedding import EmbeddingKernels
from mila.kernels.signatures.experts import ExpertKernels
from mila.kernels.signatures.linear import LinearKernels
from mila.kernels.signatures.loss import LossKernels
from mila.kernels.signatures.normalization import NormalizationKernels
from mila.kernels.signatures.optimizer import OptimizerKernels
from mila.kernels.signatures.shapes import ShapeKernels
from mila.kernels.signatures.single_row import SingleRowKernels
from mila.kernels.signatures.tokens import TokenKernels

__all__ = ["ActivationFunction", "Array", "Kernels"]


class Kernels(
    ElementwiseKernels,
    LinearKernels,
    NormalizationKernels,
    EmbeddingKernels,
    AttentionKernels,
    ContextAttentionKernels,
    LossKernels,
    OptimizerKernels,
    ShapeKernels,
    SingleRowKernels,
    ArithmeticKernels,
    TokenKernels,
    ExpertKernels,
    Protocol,
):
    """Everything a backend offers."""

    #: Stored dtypes of networks that the backend computes.
    dtypes: tuple[np.dtype[Any], ...]
    #: Axes that arrays have at most.
    most_axes: int

    def compute_dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in which networks that are stored in ``stored`` are computed, never a narrower one.

        Where it is another, all arrays have it but those of which a signature says that they may be narrower.
        """

    def unordered(self) -> Kernels:
        """Kernels that may add up floats in any order, so that results differ from call to call by roundings.

        These themselves where nothing is gained by it.
        """
