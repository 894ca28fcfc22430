"""Every kernel of the CPU with its options; attention and rotary positions have tests of their own."""

from __future__ import annotations

from tests.kernels.arithmetic_cases import arithmetic_cases
from tests.kernels.elementwise_cases import activation_cases, flat_cases
from tests.kernels.embedding_cases import embedding_cases, position_cases
from tests.kernels.expert_cases import expert_cases
from tests.kernels.half_precision_cases import half_precision_cases
from tests.kernels.head_norm_cases import head_norm_cases
from tests.kernels.linear_cases import linear_cases
from tests.kernels.loss_cases import loss_cases, optimizer_cases
from tests.kernels.normalization_cases import layer_norm_cases, rms_norm_cases, softmax_cases
from tests.kernels.shape_cases import shape_cases
from tests.kernels.token_cases import token_cases

CASES = (
    *flat_cases(),
    *activation_cases(),
    *linear_cases(),
    *layer_norm_cases(),
    *rms_norm_cases(),
    *head_norm_cases(),
    *softmax_cases(),
    *embedding_cases(),
    *position_cases(),
    *loss_cases(),
    *optimizer_cases(),
    *shape_cases(),
    *arithmetic_cases(),
    *token_cases(),
    *expert_cases(),
    *half_precision_cases(),
)
