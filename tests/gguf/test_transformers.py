"""Files of the gguf package's own writer, in every type, imported; against transformers' own loader of each file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mila
from mila.models.gguf_import import import_gguf
from tests.gguf.gguf_bytes import Array, random_array
from tests.gguf.tiny_models import LAYERS, C, D, H, K, Parts, V, gpt2_model, rotary_model

pytestmark = pytest.mark.parity


def write_with_gguf(path: Path, parts: Parts, kind: str) -> None:
    """Write a file with the gguf package; matrices in a quantized type, random blocks where it has no quantizer."""
    gguf = pytest.importorskip("gguf")
    metadata, tensors = parts
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if type(value) in adders:
            adders[type(value)](key, value)
        else:
            writer.add_array(key, value.tolist() if isinstance(value, np.ndarray) else value)
    for name, array in tensors.items():
        if array.ndim == 1:
            writer.add_tensor(name, array)
            continue
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, quantized(gguf, array, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantized(gguf: Any, array: Array, number: Any) -> Array:
    try:
        blocks: Array = gguf.quants.quantize(array, number)
        return blocks
    except NotImplementedError:
        width = gguf.quants.quant_shape_to_byte_shape(array.shape, number)
        random: Array = np.random.default_rng(array.size).integers(0, 256, width, dtype=np.uint8)
        random &= 0xBF  # without this bit no float16 among them is infinite
        return random


def opened_twice(parts: Parts, folder: Path, kind: str) -> tuple[Any, Any]:
    """The model as transformers reads the GGUF file, and as it reads the imported folder."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    write_with_gguf(folder / "model.gguf", parts, kind)
    import_gguf(folder / "model.gguf", folder / "out")
    options = {"dtype": torch.float32, "output_loading_info": True}
    theirs, _ = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", **options)
    ours, loading = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", **options)
    assert not any(loading[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return theirs.eval(), ours.eval()


def check_same_weights(theirs: Any, ours: Any) -> None:
    import torch

    expected, found = theirs.state_dict(), ours.state_dict()
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def qwen2_with_biases() -> Parts:
    metadata, tensors = rotary_model("qwen2")
    rows = {"q": H * D, "k": K * D, "v": K * D}
    tensors |= {f"blk.{n}.attn_{part}.bias": random_array(n, rows[part]) for n in range(LAYERS) for part in rows}
    return metadata, tensors


MODELS: dict[str, Callable[[], Parts]] = {
    "llama": rotary_model,
    "llama untied": lambda: rotary_model(tied=False),
    "qwen2": qwen2_with_biases,
    "qwen3": lambda: rotary_model("qwen3"),
    "gpt2": gpt2_model,
    "gpt2 untied": lambda: gpt2_model(head="own"),
}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_logits_are_those_of_transformers(tmp_path: Path, name: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = opened_twice(MODELS[name](), tmp_path, kind)
    check_same_weights(theirs, ours)
    ids = torch.arange(2 * 24).reshape(2, 24) * 5 % V
    with torch.no_grad():
        expected, found = theirs(ids).logits, ours(ids).logits
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert ours.config.eos_token_id == 258
    network = mila.from_pretrained(tmp_path / "out", context_length=24, batch_size=2, all_logits=True)
    assert np.allclose(network.forward(ids.numpy()), expected.numpy(), rtol=1e-4, atol=1e-5)


KINDS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
KINDS_OF_256 = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "TQ2_0"]


@pytest.mark.parametrize("kind", KINDS + KINDS_OF_256)
def test_every_type_gives_the_weights_that_transformers_reads(tmp_path: Path, kind: str) -> None:
    metadata, tensors = rotary_model(mlp_biases=False)
    if kind in KINDS_OF_256:  # rows of 256, so that they hold a block
        metadata |= {"llama.embedding_length": 256, "llama.feed_forward_length": 512, "llama.block_count": 1}
        metadata |= {"llama.attention.head_count_kv": 1, "llama.rope.dimension_count": 64}
        tensors = widened_block()
    theirs, ours = opened_twice((metadata, tensors), tmp_path, kind)
    check_same_weights(theirs, ours)
    assert theirs.config.num_attention_heads == ours.config.num_attention_heads == H


def widened_block() -> dict[str, Array]:
    shapes = {"attn_q": (256, 256), "attn_k": (64, 256), "attn_v": (64, 256), "attn_output": (256, 256)}
    shapes |= {"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}
    tensors = {
        f"blk.0.{name}.weight": random_array(number, *shape) for number, (name, shape) in enumerate(shapes.items())
    }
    tensors |= {f"blk.0.{name}.weight": random_array(9, 256) for name in ("attn_norm", "ffn_norm")}
    return tensors | {"output_norm.weight": random_array(10, 256), "token_embd.weight": random_array(11, V, 256)}


def test_rotary_factors_are_recovered_from_what_the_converter_writes(tmp_path: Path) -> None:
    """Factors from transformers' own Llama 3 frequencies in float32, and the same angles from the recovered config."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8}
    config = transformers.LlamaConfig(**sizes, vocab_size=8, rope_parameters=scaling, max_position_embeddings=131072)
    scaled = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    plain = 1.0 / (500000.0 ** (torch.arange(0, 128, 2, dtype=torch.float32) / 128))
    metadata, tensors = rotary_model()
    metadata |= {"llama.rope.freq_base": 500000.0, "llama.rope.dimension_count": 128, "llama.attention.key_length": 128}
    for layer in range(LAYERS):
        for name, rows in (("attn_q", H * 128), ("attn_k", K * 128), ("attn_v", K * 128)):
            tensors[f"blk.{layer}.{name}.weight"] = random_array(layer, rows, C)
        tensors[f"blk.{layer}.attn_output.weight"] = random_array(layer, C, H * 128)
    tensors["rope_freqs.weight"] = (plain / scaled).numpy()
    write_with_gguf(tmp_path / "model.gguf", (metadata, tensors), "F32")
    import_gguf(tmp_path / "model.gguf", tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {key: model.config.rope_parameters[key] for key in scaling} == scaling
    assert torch.equal(model.model.rotary_emb.inv_freq, scaled)
