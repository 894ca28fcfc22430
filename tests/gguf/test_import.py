"""GGUF to a Hugging Face folder, for files in which nothing is quantized: names, orders, shapes, config, refusals."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.errors import CheckpointError, ConfigurationError
from mila.models.gguf_import import import_gguf
from mila.models.gguf_import.importing import half_split, row_tiles
from mila.models.gguf_import.placements import Placement
from mila.models.gguf_import.rotary import llama3_factors
from mila.models.gguf_import.source import GgufSource
from mila.planning import read_target
from mila.serialization import open_tensors
from tests.gguf.gguf_bytes import Array, Raw, gguf_bytes, random_array
from tests.gguf.tiny_models import LAYERS, QWEN3_D, C, D, F, H, K, Parts, V, file_bytes, gpt2_model, rotary_model

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def imported(parts: Parts, folder: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """The config and the tensors of the folder that a file becomes."""
    file = folder / "model.gguf"
    file.write_bytes(file_bytes(parts))
    import_gguf(file, folder / "out", **options)
    with open_tensors(folder / "out") as source:
        tensors = {name: np.array(source.read(name)) for name in source.tensors}
    return json.loads((folder / "out" / "config.json").read_text()), tensors


def refused(parts: Parts, folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        imported(parts, folder)
    assert str(caught.value).startswith(str(folder / "model.gguf"))
    assert not (folder / "out").exists()
    assert len(list(folder.iterdir())) == 1


def interleaved(rows: Array, heads: int) -> Array:
    """What the converter to GGUF does, as the specification gives it for Llama."""
    count = rows.shape[0]
    return rows.reshape(heads, 2, count // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def test_rows_of_interleaved_pairs_come_out_half_split() -> None:
    """Two heads of 6: the file has pairs (0, 3), (1, 4), (2, 5); grouped heads do not mix."""
    stored = np.array([0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15])
    expected = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert half_split(stored, 2).tolist() == expected
    assert half_split(stored[:, None] * [1, 100], 2)[:, 1].tolist() == [100 * each for each in expected]
    weights = random_array(0, 24, 5)
    assert np.array_equal(half_split(interleaved(weights, 3), 3), weights)
    assert half_split(stored, 0) is stored


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_llama(tmp_path: Path, biases: bool, tied: bool) -> None:
    parts = rotary_model(biases=biases, mlp_biases=biases, tied=tied)
    config, tensors = imported(parts, tmp_path)
    stored = parts[1]
    assert tensors.keys() == _llama_names(biases, tied)
    assert np.array_equal(tensors["model.layers.1.self_attn.v_proj.weight"], stored["blk.1.attn_v.weight"])
    for part in ("weight", "bias") if biases else ("weight",):
        for name, heads in (("q", H), ("k", K)):
            found = tensors[f"model.layers.1.self_attn.{name}_proj.{part}"]
            assert np.array_equal(interleaved(found, heads), stored[f"blk.1.attn_{name}.{part}"])
            assert not np.array_equal(found, stored[f"blk.1.attn_{name}.{part}"])
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": biases,
        "attention_dropout": 0.0,
        "bos_token_id": 258,
        "eos_token_id": 258,
        "head_dim": D,
        "hidden_act": "silu",
        "hidden_size": C,
        "intermediate_size": F,
        "max_position_embeddings": 64,
        "mlp_bias": biases,
        "model_type": "llama",
        "num_attention_heads": H,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": K,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "vocab_size": V,
    }


def _llama_names(biases: bool, tied: bool) -> set[str]:
    projections = [f"self_attn.{each}_proj" for each in "qkvo"] + [
        f"mlp.{each}_proj" for each in ("gate", "up", "down")
    ]
    names = {"model.embed_tokens.weight", "model.norm.weight"} | (set() if tied else {"lm_head.weight"})
    for layer in range(LAYERS):
        norms = ["input_layernorm", "post_attention_layernorm"]
        names |= {f"model.layers.{layer}.{each}.weight" for each in projections + norms}
        names |= {f"model.layers.{layer}.{each}.bias" for each in projections if biases}
    return names


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_keeps_the_order_of_rows(tmp_path: Path, architecture: str) -> None:
    parts = rotary_model(architecture, biases=False)
    if architecture == "qwen2":
        rows = {"q": H * D, "k": K * D, "v": K * D}
        parts[1].update({f"blk.{n}.attn_{x}.bias": random_array(n, rows[x]) for n in range(LAYERS) for x in rows})
    config, tensors = imported(parts, tmp_path)
    names = {f"blk.0.attn_{each}.weight": f"model.layers.0.self_attn.{each}_proj.weight" for each in "qkv"}
    assert all(np.array_equal(tensors[ours], parts[1][theirs]) for theirs, ours in names.items())
    assert (config["model_type"], config["use_sliding_window"]) == (architecture, False)
    if architecture == "qwen3":
        assert config["head_dim"] == QWEN3_D
        assert np.array_equal(tensors["model.layers.1.self_attn.k_norm.weight"], parts[1]["blk.1.attn_k_norm.weight"])
    else:
        assert "head_dim" not in config
        assert np.array_equal(tensors["model.layers.1.self_attn.k_proj.bias"], parts[1]["blk.1.attn_k.bias"])


@pytest.mark.parametrize(("head", "tied"), [("none", True), ("table", True), ("own", False)])
def test_gpt2_is_transposed_and_its_second_table_is_a_tied_head(tmp_path: Path, head: str, tied: bool) -> None:
    parts = gpt2_model(head=head)
    config, tensors = imported(parts, tmp_path)
    for theirs, ours in (("attn_qkv", "attn.c_attn"), ("attn_output", "attn.c_proj"), ("ffn_down", "mlp.c_proj")):
        assert np.array_equal(tensors[f"transformer.h.1.{ours}.weight"], parts[1][f"blk.1.{theirs}.weight"].T)
        assert np.array_equal(tensors[f"transformer.h.1.{ours}.bias"], parts[1][f"blk.1.{theirs}.bias"])
    assert np.array_equal(tensors["transformer.wpe.weight"], parts[1]["position_embd.weight"])
    assert ("lm_head.weight" in tensors, config["tie_word_embeddings"]) == (not tied, tied)
    assert (config["n_inner"], config["activation_function"]) == (4 * C, "gelu_new")


@pytest.mark.parametrize("stored", ["<f4", "<f2", ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_comes_out_in_every_other(tmp_path: Path, stored: Any, dtype: str) -> None:
    parts = rotary_model(dtype=stored)
    seen: list[tuple[int, int]] = []
    config, tensors = imported(parts, tmp_path, dtype=dtype, on_progress=lambda *counts: seen.append(counts))
    expected = parts[1]["token_embd.weight"].astype(np.float32).astype(DTYPES[dtype])
    assert np.array_equal(tensors["model.embed_tokens.weight"].view(np.uint8), expected.view(np.uint8))
    assert config["torch_dtype"] == dtype
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_a_weight_beyond_float16_is_refused_and_another_dtype_too(tmp_path: Path) -> None:
    parts = rotary_model()
    parts[1]["blk.1.ffn_up.weight"][3, 3] = 1e6
    with pytest.raises(CheckpointError, match="up_proj"):
        imported(parts, tmp_path, dtype="float16")
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]
    with pytest.raises(ConfigurationError, match="float32 or bfloat16 or float16, got 'int8'"):
        import_gguf(tmp_path / "model.gguf", tmp_path / "out", dtype="int8")


OPTIONAL = (
    "rope.freq_base",
    *("bos_token_id", "eos_token_id", "eot_token_id", "add_bos_token", "chat_template"),
    # The specification says what holds without these; here it is something else, and the shapes disagree.
    *("head_count_kv", "key_length", "value_length"),
)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_a_missing_key_is_named(tmp_path: Path, architecture: str) -> None:
    metadata, tensors = gpt2_model() if architecture == "gpt2" else rotary_model(architecture)
    for key in metadata:
        if not key.endswith(OPTIONAL) and key != "qwen3.rope.dimension_count":
            rest = {name: value for name, value in metadata.items() if name != key}
            refused((rest, tensors), tmp_path, rf"metadata {key}")


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_without_a_base_of_the_rotary_frequencies_it_is_that_of_llama_cpp(tmp_path: Path, architecture: str) -> None:
    metadata, tensors = rotary_model(architecture)
    del metadata[f"{architecture}.rope.freq_base"]
    (tmp_path / "model.gguf").write_bytes(file_bytes((metadata, tensors)))
    report = import_gguf(tmp_path / "model.gguf", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_theta"] == 10000
    note = f"there is no {architecture}.rope.freq_base: taken as 10000, as llama.cpp does"
    assert note in report.notes
    assert note in read_target(tmp_path / "model.gguf").notes


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"general.architecture": "mamba"}, "'mamba'"),
    "split": ({"split.count": 3}, "one of 3 files"),
    "adapter": ({"general.type": "adapter"}, "'adapter'"),
    "experts": ({"llama.expert_count": 8}, "mixture of experts"),
    "unknown key": ({"llama.attention.clamp_kqv": 8.0}, "llama.attention.clamp_kqv: expected no such key"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, "'yarn'"),
    "factor alone": ({"llama.rope.scaling.factor": 2.0}, "rope.scaling.type beside"),
    "partial rotary": ({"llama.rope.dimension_count": 4}, "from 8 to 8, got 4"),
    "text for a number": ({"llama.block_count": "2"}, "whole number"),
    "layers": ({"llama.block_count": 1 << 31}, "whole number from 1 to"),
    "one layer less": ({"llama.block_count": 1}, "unexpected 'blk.1"),
    "one layer more": ({"llama.block_count": 3}, "missing 'blk.2"),
    "heads": ({"llama.attention.head_count": 3}, "key_length, because 3 heads do not divide"),
    "heads per layer": ({"llama.attention.head_count": np.array([4, 4], "<i4")}, "an array of 2"),
    "width of values": ({"llama.attention.value_length": 16}, "from 8 to 8, got 16"),
    "vocabulary": ({"llama.vocab_size": 300}, "from 261 to 261, got 300"),
    "epsilon": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "a number above 0"),
    "layout": ({"llama.tensor_data_layout": "other"}, "known layout"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_that_is_not_understood_is_refused_by_name(tmp_path: Path, name: str) -> None:
    metadata, tensors = rotary_model()
    change, message = CHANGES[name]
    refused((metadata | change, tensors), tmp_path, message)


def test_wrong_tensors_are_all_listed(tmp_path: Path) -> None:
    metadata, tensors = rotary_model()
    tensors["blk.0.attn_q.weight"] = random_array(0, C, 2 * C)
    tensors["extra"] = tensors.pop("blk.1.ffn_up.weight")
    refused(
        (metadata, tensors),
        tmp_path,
        "missing 'blk.1.ffn_up.weight', .*'blk.0.attn_q.weight' of shape .*unexpected 'extra'",
    )


def test_types_without_numbers_are_refused_by_name(tmp_path: Path) -> None:
    metadata, tensors = rotary_model()
    tensors["blk.0.ffn_up.weight"] = Raw(24, (F, C), bytes(F * C))
    refused((metadata, tensors), tmp_path, "I8")


def test_a_missing_gguf_package_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, tensors = rotary_model()
    tensors["blk.0.ffn_up.weight"] = Raw(8, (F, C), bytes(F * C // 32 * 34))
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused((metadata, tensors), tmp_path, r"type Q8_0 need the package gguf: pip install gguf")


def test_a_sliding_window_makes_it_mistral(tmp_path: Path) -> None:
    metadata, tensors = rotary_model()
    metadata["llama.attention.sliding_window"] = 16
    config, _ = imported((metadata, tensors), tmp_path)
    assert (config["model_type"], config["architectures"]) == ("mistral", ["MistralForCausalLM"])
    assert config["sliding_window"] == 16
    assert "mlp_bias" not in config


@pytest.mark.parametrize(
    ("metadata", "factors", "expected"),
    [
        ({"rope.scaling.type": "none"}, None, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}, None, {"rope_type": "linear", "factor": 2.5}),
        ({"rope.scale_linear": 4.0}, None, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.freq_base": 5e5}, (32.0, 8192), (32.0, 8192)),
        ({"rope.scaling.original_context_length": 64}, (8.0, 64), (8.0, 64)),
    ],
)
def test_rotary_scaling(tmp_path: Path, metadata: dict[str, Any], factors: Any, expected: Any) -> None:
    own, tensors = rotary_model()
    own |= {f"llama.{key}": value for key, value in metadata.items()}
    if factors is not None:
        theta = own["llama.rope.freq_base"]
        tensors["rope_freqs.weight"] = llama3_factors(D, theta, *factors).astype("<f4")
        factor, context = expected
        expected = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        expected["original_max_position_embeddings"] = context
    config, _ = imported((own, tensors), tmp_path)
    assert config["rope_scaling"] == expected


def test_rotary_factors_that_are_not_llama_3s_are_refused(tmp_path: Path) -> None:
    metadata, tensors = rotary_model()
    tensors["rope_freqs.weight"] = np.array([1, 2, 3, 4], "<f4")
    refused((metadata, tensors), tmp_path, "factors of Llama 3's scaling")
    tensors["rope_freqs.weight"] = np.array([1, 1, 1, np.nan], "<f4")
    refused((metadata, tensors), tmp_path, "finite factors")
    for wrong in (np.ones(3, "<f4"), np.ones(4, "<f2"), Raw(24, (4,), bytes(4))):
        tensors["rope_freqs.weight"] = wrong
        refused((metadata, tensors), tmp_path, "one F32 factor for each of 4 pairs")


def test_an_earlier_import_is_replaced_and_anything_else_left_alone(tmp_path: Path) -> None:
    imported(rotary_model(), tmp_path)
    imported(rotary_model("qwen3"), tmp_path)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen3"
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"thesis\.txt"):
        imported(rotary_model(), tmp_path)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen3"


KILLED = """
import os, sys
from mila.models.gguf_import import import_gguf
def stop(done, total):
    if 2 * done > total:
        os.kill(os.getpid(), 9)
import_gguf(sys.argv[1], sys.argv[2], on_progress=stop)
"""


def test_a_killed_import_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    file.write_bytes(file_bytes(rotary_model()))
    command = [sys.executable, "-c", KILLED, str(file), str(out)]
    assert subprocess.run(command, check=False).returncode == -9
    assert not out.exists()
    import_gguf(file, out)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.gguf", "out"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_whole_import_holds_a_few_tiles(tmp_path: Path, dtype: str) -> None:
    """Six tensors of 16 MiB as float32, 100 MiB in all."""
    metadata, tensors = rotary_model(dtype="<f2")
    metadata["llama.feed_forward_length"] = 1 << 17
    shapes = {"ffn_gate": (1 << 17, C), "ffn_up": (1 << 17, C), "ffn_down": (C, 1 << 17)}
    tensors |= {f"blk.{n}.{name}.weight": np.ones(shapes[name], "<f2") for n in range(LAYERS) for name in shapes}
    file = tmp_path / "model.gguf"
    file.write_bytes(file_bytes((metadata, tensors)))
    import_gguf(file, tmp_path / "first", dtype=dtype)  # what is imported lazily is there now
    tracemalloc.start()
    import_gguf(file, tmp_path / "second", dtype=dtype)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


@pytest.mark.parametrize(("heads", "is_transposed"), [(0, False), (16, False), (0, True)])
def test_a_large_tensor_is_never_whole_in_memory(tmp_path: Path, heads: int, is_transposed: bool) -> None:
    """64 MiB as float32, of which a tile of 4 MiB and its copies are there at a time."""
    stored = np.arange(1 << 24, dtype="<u4").view("<f4").reshape(4096, 4096)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, {"w": stored}))
    expected = stored.T if is_transposed else half_split(stored, heads)
    row = 0
    with GgufSource(path) as source:
        tracemalloc.start()
        for tile in row_tiles(source, Placement("w", "w", (4096, 4096), heads, is_transposed)):
            assert math.prod(tile.shape) <= 1 << 20
            assert np.array_equal(tile.view("<u4"), expected[row : row + len(tile)].view("<u4"))
            row += len(tile)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert row == 4096
    assert peak < 24 << 20
