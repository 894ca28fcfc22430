"""`transformers` loads what is exported here, shard by shard, and what it saves is opened here, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.serialization import ExportFolder, open_tensors, read_json_object

pytestmark = pytest.mark.parity
Array = np.ndarray[Any, np.dtype[Any]]


def tiny_model(dtype: Any, *, tied: bool) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(dtype)


def arrays_of(model: Any) -> dict[str, Array]:
    """Return the tensors of a model by their names, in its order; those of bfloat16 by their bits."""
    import torch

    found = {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.bfloat16:
            found[name] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            found[name] = tensor.numpy()
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("limit", ["1GB", "12KB"])
@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_transformers_loads_an_export(tmp_path: Path, dtype_name: str, limit: str, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = tiny_model(getattr(torch, dtype_name), tied=tied)
    arrays = arrays_of(model)
    stored = {name: array for name, array in arrays.items() if not (tied and name == "lm_head.weight")}
    with ExportFolder(tmp_path / "out") as folder:
        folder.write_json("config.json", json.loads(model.config.to_json_string()))
        with folder.tensors(limit) as writer:
            writer.set_metadata("format", "pt")
            for name, array in stored.items():
                writer.declare(name, array.dtype, array.shape)
            if tied:
                writer.declare_alias("lm_head.weight", "model.embed_tokens.weight")
            writer.begin()
            for name, array in stored.items():
                writer.write(name, array)
    assert (tmp_path / "out" / "model.safetensors.index.json").exists() == (limit == "12KB")
    loaded, said = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=getattr(torch, dtype_name)
    )
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, array in arrays_of(loaded).items():
        assert array.tobytes() == arrays[name].tobytes(), name


@pytest.mark.parametrize("limit", ["1GB", "12KB"])
def test_what_transformers_saves_is_opened(tmp_path: Path, limit: str) -> None:
    torch = pytest.importorskip("torch")
    model = tiny_model(torch.bfloat16, tied=True)
    model.save_pretrained(tmp_path, max_shard_size=limit)
    assert read_json_object(tmp_path / "config.json")["model_type"] == "llama"
    arrays = arrays_of(model)
    with open_tensors(tmp_path) as source:
        assert set(source.tensors) == set(arrays) - {"lm_head.weight"}
        assert source.metadata["format"] == "pt"
        for name in source.tensors:
            assert source.read(name).tobytes() == arrays[name].tobytes()


def test_both_split_a_model_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = tiny_model(torch.float32, tied=False)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="14KB")
    with ExportFolder(tmp_path / "ours") as folder, folder.tensors("14KB") as writer:
        for name, array in arrays_of(model).items():
            writer.declare(name, array.dtype, array.shape)
        writer.begin()
        for name, array in arrays_of(model).items():
            writer.write(name, array)
    ours, theirs = (
        read_json_object(tmp_path / each / "model.safetensors.index.json", what="index") for each in ("ours", "theirs")
    )
    assert ours["weight_map"] == theirs["weight_map"]
    assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]


def test_weights_of_pytorch_are_told_how_to_be_converted(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(ValueError, match=r"pytorch_model.bin.*AutoModelForCausalLM.from_pretrained\(FOLDER\)"):
            open_tensors(path)
