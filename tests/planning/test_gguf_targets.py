"""GGUF files as targets: the model of their import, from their headers alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import CheckpointError, ConfigurationError
from mila.models.gguf_import import import_gguf
from mila.planning.report import TargetKind
from mila.planning.targets import read_target
from tests.gguf.gguf_bytes import Raw, gguf_bytes
from tests.gguf.tiny_models import Parts, gpt2_model, rotary_model
from tests.planning.reading import parameter_bytes, refused


def quantized(parts: Parts, number: int, block: int, size: int) -> bytes:
    """The parts as a file whose matrices are of a quantized type, all zeros."""
    metadata, tensors = parts
    kinds = {
        name: Raw(number, array.shape, bytes(array.size // block * size)) if array.ndim == 2 else array
        for name, array in tensors.items()
    }
    return gguf_bytes(metadata, kinds)


def qwen2_model() -> Parts:
    """With the biases that a Qwen2 has."""
    metadata, tensors = rotary_model("qwen2", biases=True)
    return metadata, {name: array for name, array in tensors.items() if not name.endswith("attn_output.bias")}


GGUF_MODELS = [
    rotary_model("llama"),
    rotary_model("llama", biases=True, tied=False, dtype="<f2"),
    qwen2_model(),
    rotary_model("qwen3", tied=False),
    gpt2_model(),
    gpt2_model(head="table"),
]


@pytest.mark.parametrize("number", range(len(GGUF_MODELS)))
def test_a_gguf_file_is_the_model_of_its_import(tmp_path: Path, number: int) -> None:
    path = tmp_path / "tiny.Q.gguf"
    path.write_bytes(gguf_bytes(*GGUF_MODELS[number]))
    import_gguf(path, tmp_path / "imported")
    target, imported = read_target(str(path)), read_target(str(tmp_path / "imported"))
    assert (target.kind, target.name) == (TargetKind.GGUF, "tiny.Q")
    assert (target.config, target.model_type) == (imported.config, imported.model_type)
    tensors = GGUF_MODELS[number][1].values()
    assert target.stored is not None
    assert target.stored.nbytes == sum(array.nbytes for array in tensors)
    assert target.stored.elements == sum(array.size for array in tensors)
    assert target.notes[-1].startswith("planned as `mila import` makes it")
    assert "a GGUF file has no field 'other' to ignore" in read_target(str(path), ignore_fields=["other"]).notes


def test_the_head_of_a_gguf_file_is_the_table_where_that_is_asked_for(tmp_path: Path) -> None:
    """As of its import: one that is stored can be left out, and one that is not there cannot be had."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(*rotary_model(tied=False)))
    import_gguf(path, tmp_path / "imported")
    for asked in (None, True, False):
        target = read_target(str(path), tie_word_embeddings=asked)
        imported = read_target(str(tmp_path / "imported"), tie_word_embeddings=asked)
        assert (target.config, parameter_bytes(target)) == (imported.config, parameter_bytes(imported))
        assert ("output.weight is not used, as tie_word_embeddings=True says" in target.notes) is (asked is True)
    for parts in (rotary_model(), gpt2_model(head="table")):
        path.write_bytes(gguf_bytes(*parts))
        assert read_target(str(path), tie_word_embeddings=True).notes == read_target(str(path)).notes
        message = "expected a head of its own, as tie_word_embeddings=False says, got none but the table$"
        refused(path, ConfigurationError, message, tie_word_embeddings=False)


@pytest.mark.parametrize(
    ("name", "number", "block", "size"), [("q4_0", 2, 32, 18), ("q8_0", 8, 32, 34), ("q5_1", 7, 32, 24)]
)
def test_quantized_files_are_planned_without_the_package_gguf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, block: int, size: int
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    path = tmp_path / "blob"  # known by its first bytes
    path.write_bytes(quantized(rotary_model(tied=False), number, block, size))
    target = read_target(str(path))
    elements = sum(array.size for array in rotary_model(tied=False)[1].values() if array.ndim == 2)
    assert target.stored is not None
    assert target.stored.dtypes[name] == elements // block * size
    assert next(iter(target.stored.dtypes)) == name
    assert set(target.stored.dtypes) == {name, "float32"}


def test_a_gguf_file_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    metadata, tensors = rotary_model()
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata | {"general.architecture": "phi3"}, tensors))
    refused(path, CheckpointError, "general.architecture: expected llama or qwen2 or qwen3 or gpt2, got 'phi3'")
    path.write_bytes(gguf_bytes(metadata, tensors)[:-40])
    refused(path, CheckpointError, "truncated, an incomplete download")
    path.write_text("<html>")
    refused(path, CheckpointError, "expected a GGUF file.*HTML")
    refused(tmp_path, ConfigurationError, r"expected a model folder with config.json, got GGUF files: .*name the file")


def test_a_file_of_the_gguf_package(tmp_path: Path) -> None:
    """Blocks of 256 elements, written by the reference implementation."""
    gguf: Any = pytest.importorskip("gguf")
    path, width = tmp_path / "model.gguf", 256
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, width),
        (writer.add_feed_forward_length, 2 * width),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_freq_base, 10000.0),
        (writer.add_rope_dimension_count, 64),
    ):
        add(value)
    q8_0, q4_k = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_K
    table = gguf.quants.quantize(np.ones((100, width), np.float32), q8_0)
    writer.add_tensor("token_embd.weight", table, raw_dtype=q8_0)
    rows = {"attn_q": width, "attn_k": width // 2, "attn_v": width // 2, "attn_output": width}
    matrices = {name: (count, width) for name, count in rows.items()} | {
        "ffn_gate": (512, width),
        "ffn_up": (512, width),
    }
    for name, (count, columns) in {**matrices, "ffn_down": (width, 512)}.items():
        blocks = np.zeros((count, columns // 256 * 144), np.uint8)
        writer.add_tensor(f"blk.0.{name}.weight", blocks, raw_dtype=q4_k)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target = read_target(str(path))
    elements = 3 * width * width + 3 * 2 * width * width
    assert target.stored is not None
    assert target.stored.dtypes == {
        "q4_k": elements // 256 * 144,
        "q8_0": 100 * width // 32 * 34,
        "float32": 12 * width,
    }
    assert target.stored.elements == elements + 103 * width
    assert parameter_bytes(target) == 4 * target.stored.elements
