"""A GGUF file as a Hugging Face folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mila.errors import ConfigurationError
from mila.models.arguments import check_progress
from mila.models.gguf_import.architectures import ModelDescription, describe_model
from mila.models.gguf_import.ggml_types import check_readable
from mila.models.gguf_import.header import TensorInfo
from mila.models.gguf_import.placements import Placement
from mila.models.gguf_import.source import GgufSource
from mila.models.gguf_import.tokenizer import TokenizerFiles, convert_tokenizer
from mila.serialization import ExportFolder
from mila.serialization.paths import checked_path

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = MappingProxyType({"float32": "F32", "bfloat16": "BF16", "float16": "F16"})
"""The dtypes in which a folder may be written, with their names in safetensors."""

_MAX_SHARD_BYTES = "5GB"
_TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was imported.

    Attributes:
        folder: the folder that was written.
        architecture: what the file calls its architecture.
        model_type: what ``config.json`` calls it.
        dtype: of the weights that were written.
        parameter_count: the elements of all tensors that were written.
        weight_bytes: their bytes.
        tensor_types: how many tensors of each type the file holds, most frequent first.
        notes: what a user should be told.
    """

    folder: Path
    architecture: str
    model_type: str
    dtype: str
    parameter_count: int
    weight_bytes: int
    tensor_types: dict[str, int]
    notes: tuple[str, ...]


def import_gguf(
    file: Path | str,
    out_folder: Path | str,
    *,
    dtype: str = "float32",
    on_progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Write a GGUF file as a Hugging Face folder: config, weights, tokenizer and chat template.

    Everything is checked before anything is written, and the folder appears whole or not at all. Of the weights, a
    tile of 4 MiB is in memory at a time, beside what dequantizing it takes.

    Args:
        file: a GGUF file of the architectures llama, qwen2, qwen3 or gpt2.
        out_folder: a free name, or a folder that holds nothing but an earlier import or export, which is replaced.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        on_progress: called with the bytes of weights that are written and those of all.

    Returns:
        What was imported.

    Raises:
        ConfigurationError: an argument that is none, such as an unknown dtype.
        CheckpointError: the file is malformed or not understood, the package ``gguf`` is missing or cannot dequantize
            a type, a weight is too large for the dtype, or the operating system refuses; nothing was written.
    """
    out_path = checked_path(out_folder, "out_folder")
    check_progress(on_progress)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ConfigurationError(f"dtype: expected {' or '.join(DTYPES)}, got {dtype!r}")
    with GgufSource(checked_path(file, "file")) as source:
        model = describe_model(source)
        kinds = Counter(tensor.kind for tensor in source.tensors.values())
        check_readable(kinds, source.path)
        tokenizer = convert_tokenizer(source, model.vocab_size, model.context_length)
        weight_bytes = _write(source, model, tokenizer, out_path, dtype, on_progress)
        return ImportReport(
            folder=out_path,
            architecture=source.text("general.architecture"),
            model_type=model.config["model_type"],
            dtype=dtype,
            parameter_count=model.parameter_count,
            weight_bytes=weight_bytes,
            tensor_types={kind.name: count for kind, count in kinds.most_common()},
            notes=(*model.notes, *tokenizer.notes),
        )


def _write(
    source: GgufSource,
    model: ModelDescription,
    tokenizer: TokenizerFiles,
    out_folder: Path,
    dtype: str,
    on_progress: Callable[[int, int], None] | None,
) -> int:
    """Write the folder; return the bytes of its weights."""
    with ExportFolder(out_folder) as folder:
        folder.write_json("config.json", {**model.config, **tokenizer.token_ids, "torch_dtype": dtype})
        folder.write_json("generation_config.json", tokenizer.generation_config)
        folder.write_json("tokenizer_config.json", tokenizer.tokenizer_config)
        folder.write_bytes("tokenizer.json", tokenizer.tokenizer.encode("utf-8"))
        item_bytes = 4 if dtype == "float32" else 2
        total = model.parameter_count * item_bytes
        done = 0
        with folder.tensors(_MAX_SHARD_BYTES) as writer:
            writer.set_metadata("format", "pt")
            for placement in model.placements:
                writer.declare(placement.name, DTYPES[dtype], placement.shape, convert=True)
            writer.begin()

            def counted(tiles: Iterator[Array]) -> Iterator[Array]:
                nonlocal done
                for tile in tiles:
                    yield tile
                    done += tile.size * item_bytes
                    if on_progress is not None:
                        on_progress(done, total)

            for placement in model.placements:
                writer.write_rows(placement.name, counted(row_tiles(source, placement)))
        source.check_unchanged()
    return total


def row_tiles(source: GgufSource, placement: Placement) -> Iterator[Array]:
    """Yield a tensor as float32, in the order and layout it has in the folder, some rows at a time.

    Yields:
        ``(rows, ...)``, together of the placement's shape; about 2**20 elements, at least a head or a block of rows.
    """
    tensor = source.tensors[placement.source]
    if len(placement.shape) == 1:
        yield half_split(source.rows(tensor, 0, 1)[0], placement.interleaved_heads)
    elif placement.is_transposed:
        step = _step(tensor.shape[0], tensor.kind.block_elements)
        for first in range(0, tensor.shape[1], step):
            yield source.columns(tensor, first, min(first + step, tensor.shape[1])).T
    else:
        yield from _rows(source, tensor, placement.interleaved_heads)


def _rows(source: GgufSource, tensor: TensorInfo, heads: int) -> Iterator[Array]:
    rows, columns = tensor.shape
    head_rows = rows // heads if heads else 1
    step = _step(columns, head_rows)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        yield half_split(source.rows(tensor, first, last), (last - first) // head_rows if heads else 0)


def _step(row_elements: int, multiple: int) -> int:
    """Return how many rows make a tile: a multiple of what belongs together."""
    return max(1, _TILE_ELEMENTS // (row_elements * multiple)) * multiple


def half_split(rows: Array, heads: int) -> Array:
    """Return rows of interleaved rotary pairs in the half-split order that Hugging Face's Llama has.

    GGUF's converter moves row ``half * D/2 + pair`` of each head to ``2 * pair + half``; this moves it back.

    Args:
        rows: ``(heads * D, ...)``.
        heads: how many heads the rows are of; with 0 they are returned as they are.
    """
    if not heads:
        return rows
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)
