"""How GGUF stores numbers: every type's blocks, and its way to float32.

A quantized type packs a fixed number of consecutive elements of a row into a block of bytes. The sizes are those of the
GGUF specification (ggml-org/ggml, ``docs/gguf.md``); F32, F16 and BF16 are read here, everything else by the package
``gguf``, which is imported when it is needed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from mila.errors import CheckpointError
from mila.serialization.failures import refusal

Array = np.ndarray[Any, np.dtype[Any]]


class GgmlType(NamedTuple):
    """A type of the format: its number and name there, the elements of a block, and the bytes that hold them."""

    number: int
    name: str
    block_elements: int
    block_bytes: int


_ALL = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 40),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
)

GGML_TYPES = MappingProxyType({each.number: each for each in _ALL})
"""Every type that a file may hold, by its number; numbers between them belonged to types that were removed."""

_PLAIN: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def to_float32(content: Array, kind: GgmlType) -> Array:
    """Return the numbers that rows of stored bytes stand for.

    Args:
        content: uint8 (rows, bytes of a row), contiguous, whole blocks.
        kind: their type, one that `check_readable` accepted.

    Returns:
        float32 (rows, elements of a row).
    """
    if kind.name in _PLAIN:
        return content.view(_PLAIN[kind.name]).astype(np.float32, copy=False)
    import gguf

    with np.errstate(all="ignore"):  # whatever the blocks hold becomes numbers; the file's zeros and infinities too
        numbers: Array = gguf.quants.dequantize(content, gguf.GGMLQuantizationType(kind.number))
    return numbers


def check_readable(kinds: Iterable[GgmlType], path: Path) -> None:
    """Check that every type can be read, the package ``gguf`` included where one needs it.

    Raises:
        CheckpointError: a type that has no way to float32, or the package is not installed.
    """
    for kind in sorted(set(kinds)):
        if kind.name not in _PLAIN:
            _check_dequantizable(kind, path)


def _check_dequantizable(kind: GgmlType, path: Path) -> None:
    try:
        import gguf
    except ImportError:
        raise CheckpointError(f"{path}: tensors of type {kind.name} need the package gguf: pip install gguf") from None
    block = np.zeros((1, kind.block_bytes), np.uint8)
    try:
        # What the installed version can do, it shows on one block.
        gguf.quants.dequantize(block, gguf.GGMLQuantizationType(kind.number))
    except (NotImplementedError, ValueError):
        raise refusal(path, expected="types that the package gguf dequantizes", got=kind.name) from None
