"""The rotary scaling of a GGUF file, as Hugging Face's ``rope_scaling``.

Linear scaling is in the metadata. Llama 3's is not: the file holds only what it makes of each frequency, one factor for
each pair of dimensions (``rope_freqs.weight``). The parameters are recovered by trying the ones that Llama 3 is
published with, and believed only if they give every one of the stored factors back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mila.models.gguf_import.source import GgufSource
from mila.serialization.failures import refusal

FACTORS = "rope_freqs.weight"

_LOW_FREQUENCY_FACTOR = 1.0
_HIGH_FREQUENCY_FACTOR = 4.0
_PUBLISHED_CONTEXT = 8192
# Converters compute the factors in float32, where a frequency is right to about 1e-6 and the blend between the two
# wavelengths makes at most 1e-5 of that. The next whole number in place of any parameter moves factors by over 1e-3.
_TOLERANCE = 1e-4


def read_rope_scaling(source: GgufSource, prefix: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Return ``rope_scaling`` for a ``config.json``; None where positions are not scaled.

    Args:
        source: the file.
        prefix: the architecture, with which the keys begin.
        head_dim: size D of a head, all of it rotary.
        theta: base of the rotary wavelengths.

    Raises:
        CheckpointError: another scaling than none, linear or Llama 3's.
    """
    declared = _declared_scaling(source, prefix)
    if FACTORS not in source.tensors:
        return declared
    if declared is not None:
        raise refusal(source.path, tensor=FACTORS, expected="one kind of rotary scaling", got="linear scaling as well")
    tensor = source.tensors[FACTORS]
    if (tensor.kind.name, tensor.shape) != ("F32", (head_dim // 2,)):
        expected = f"one F32 factor for each of {head_dim // 2} pairs"
        got = f"{tensor.kind.name} of shape {list(tensor.shape)}"
        raise refusal(source.path, tensor=FACTORS, expected=expected, got=got)
    factors = source.rows(tensor, 0, 1)[0].astype(np.float64)
    key = f"{prefix}.rope.scaling.original_context_length"
    context = source.integer(key, minimum=1) if source.has(key) else _PUBLISHED_CONTEXT
    if not np.all(np.isfinite(factors)) or factors[-1] < 1:
        raise refusal(
            source.path, tensor=FACTORS, expected="finite factors from 1 on", got=f"{factors[-1]} as the last"
        )
    factor = round(float(factors[-1]), 4)
    if not np.allclose(factors, llama3_factors(head_dim, theta, factor, context), rtol=_TOLERANCE, atol=0):
        raise refusal(
            source.path,
            tensor=FACTORS,
            expected=f"the factors of Llama 3's scaling (1, 4 and {context} positions)",
            got="others, whose parameters the file does not hold",
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW_FREQUENCY_FACTOR,
        "high_freq_factor": _HIGH_FREQUENCY_FACTOR,
        "original_max_position_embeddings": context,
    }


def llama3_factors(head_dim: int, theta: float, factor: float, context: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return by what Llama 3's scaling divides each of the D/2 frequencies: float64 (D/2,).

    Wavelengths above ``context / 1`` are divided by `factor`, those below ``context / 4`` by 1, and between the two the
    inverse factors are blended in the number of turns that fit into `context` (Llama 3.1, Grattafiori et al. 2024).
    """
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = context * frequencies / (2 * math.pi)
    blend = (turns - _LOW_FREQUENCY_FACTOR) / (_HIGH_FREQUENCY_FACTOR - _LOW_FREQUENCY_FACTOR)
    blend = np.clip(blend, 0.0, 1.0)
    factors: np.ndarray[Any, np.dtype[np.float64]] = 1 / ((1 - blend) / factor + blend)
    return factors


def _declared_scaling(source: GgufSource, prefix: str) -> dict[str, Any] | None:
    older = f"{prefix}.rope.scale_linear"
    key = f"{prefix}.rope.scaling.type"
    if not source.has(key):
        factor_key = f"{prefix}.rope.scaling.factor"
        if source.has(factor_key):
            raise refusal(source.path, expected=f"metadata {key} beside {factor_key}", got="none")
        return _linear(source.number(older)) if source.has(older) else None
    kind = source.text(key)
    if kind == "none":
        return None
    if kind != "linear":
        raise source.refuse(key, "none or linear", repr(kind), "no kernel scales positions in this way")
    return _linear(source.number(f"{prefix}.rope.scaling.factor"))


def _linear(factor: float) -> dict[str, Any] | None:
    return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
