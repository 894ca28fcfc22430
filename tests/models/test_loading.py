"""Folders that are damaged, loading that ends half-way, and built networks that take weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import mila
from mila import BuildContext, RuntimeMode, TrainingStep
from mila.components import SoftmaxCrossEntropy
from mila.core.initializers import ones
from mila.errors import CheckpointError, ConfigurationError, LifecycleError, ShapeError
from mila.memory.declarations import Declaration, parameter
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer, read_model_folder
from mila.serialization import open_tensors
from mila.training import AdamW
from tests.models.folder_cases import GOLDEN
from tests.models.running import (
    B,
    T,
    contents,
    edited,
    expected_logits,
    forward,
    load,
    relative_error,
    requires_equal_logits,
)

# ---------------------------------------------------------------------- files


def remove_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def add_shard(folder: Path) -> None:
    shutil.copy(folder / "model-00003-of-00003.safetensors", folder / "model-00004-of-00004.safetensors")


def truncate(folder: Path) -> None:
    os.truncate(folder / "model-00001-of-00003.safetensors", 900)


def confuse_index(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first, last = min(content["weight_map"].values()), max(content["weight_map"].values())
    name = next(name for name, shard in content["weight_map"].items() if shard == first)
    content["weight_map"][name] = last
    index.write_text(json.dumps(content))


def make_pointer(folder: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n"
    (folder / "model-00001-of-00003.safetensors").write_text(pointer)


def leave_pickles(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_shard, "model-00002-of-00003.safetensors"),
        (add_shard, "model-00004-of-00004.safetensors"),
        (truncate, "model-00001-of-00003.safetensors"),
        (confuse_index, "model.safetensors.index.json"),
        (make_pointer, "LFS"),
        (leave_pickles, r"pytorch_model\.bin"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    folder = edited(tmp_path / "model", "llama_tied_llama3")
    network = load(folder)
    before = contents(network)
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder)
    with pytest.raises(CheckpointError, match=message):
        mila.load_weights(network, folder)
    assert contents(network) == before
    network.forward(np.zeros((1, T), np.int32))


def test_more_positions_than_the_model_has(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="expected at most 16 positions, got 17"):
        load(GOLDEN / "gpt2_tied", context_length=17)


class StopError(Exception):
    """Stands for Ctrl-C, or for whatever ends a loading half-way."""


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError, StopError])
@pytest.mark.parametrize("name", ["llama_tied_llama3", "gpt2_bare_bfloat16"])
def test_a_loading_that_ends_half_way_leaves_a_network_that_says_what_it_lacks(
    name: str, end: type[BaseException]
) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise end

    network = load(GOLDEN / name)
    ids, logits = expected_logits(name)
    with pytest.raises(end):
        mila.load_weights(network, GOLDEN / name, on_progress=stop)
    with pytest.raises(LifecycleError, match=r"neither initialised nor loaded: .*block_1"):
        network.forward(ids)
    with pytest.raises(LifecycleError, match="save_pretrained needs all parameters"):
        network.save_pretrained("never written")
    mila.load_weights(network, GOLDEN / name)
    assert relative_error(forward(network, ids), logits) <= 1e-5
    with pytest.raises(end):
        load(GOLDEN / name, on_progress=stop)


def test_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    folder = edited(tmp_path / "model", "llama_grouped")
    network = load(folder)

    def cut(done: int, total: int) -> None:
        os.truncate(folder / "model.safetensors", 2000)

    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        mila.load_weights(network, folder, on_progress=cut)
    with pytest.raises(LifecycleError, match="neither initialised nor loaded"):
        network.forward(np.zeros((1, T), np.int32))


@pytest.mark.parametrize("name", ["gpt2_tied", "gpt2_bare_bfloat16", "llama_tied_llama3"])
def test_progress_counts_the_bytes_of_the_files(name: str) -> None:
    seen: list[tuple[int, int]] = []
    load(GOLDEN / name, on_progress=lambda done, total: seen.append((done, total)))
    with open_tensors(GOLDEN / name) as source:
        size = sum(entry.nbytes for entry in source.tensors.values())
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


# ---------------------------------------------------------------------- load_weights


def test_weights_of_another_function_are_refused(tmp_path: Path) -> None:
    network = load(GOLDEN / "llama_grouped")
    before = contents(network)
    for fields, part in (
        ({"rms_norm_eps": 1e-3}, "norm_epsilon 1e-06 here, 0.001 there"),
        ({"rope_theta": 7}, "rope_theta 10000.0 here, 7.0 there"),
    ):
        folder = edited(tmp_path / part[:4], "llama_grouped", **fields)
        with pytest.raises(CheckpointError, match=part):
            mila.load_weights(network, folder)
    with pytest.raises(CheckpointError, match="class 'LlamaConfig' here, 'GptConfig' there"):
        mila.load_weights(network, GOLDEN / "gpt2_tied")
    assert contents(network) == before


def test_load_weights_takes_language_models_and_training_steps_that_are_built() -> None:
    network = read_model_folder(GOLDEN / "gpt2_tied").network(device="cpu")
    with pytest.raises(LifecycleError, match="load_weights needs a built component"):
        mila.load_weights(network, GOLDEN / "gpt2_tied")
    with pytest.raises(ConfigurationError, match="expected a language model"):
        mila.load_weights(SoftmaxCrossEntropy("loss"), GOLDEN / "gpt2_tied")


def test_a_training_step_is_loaded_and_exported(tmp_path: Path) -> None:
    found = read_model_folder(GOLDEN / "gpt2_tied", dropout=0.1)
    step = TrainingStep(found.network(), SoftmaxCrossEntropy("loss"), AdamW(), device="cpu")
    step.build(BuildContext((2, T), RuntimeMode.TRAINING))
    with pytest.raises(ConfigurationError, match=r"for training pass dropout=0\.0"):
        mila.load_weights(step, GOLDEN / "gpt2_tied")
    with pytest.raises(ConfigurationError, match=r"has dropout 0\.1, got dropout=0\.0"):
        mila.load_weights(step, GOLDEN / "gpt2_tied", dropout=0.0)
    report = mila.load_weights(step, GOLDEN / "gpt2_tied", dropout=0.1)
    assert report.loaded == 28
    network = step.network
    assert isinstance(network, LanguageModel)
    network.save_pretrained(tmp_path / "export")
    requires_equal_logits(tmp_path / "export", "gpt2_tied")


def test_a_hand_made_network_takes_the_weights() -> None:
    config = GptConfig(
        vocab_size=37, embedding_dim=12, hidden_dim=48, num_layers=2, num_heads=2, max_seq_len=16, initial_std=0.1
    )
    network = GptTransformer("mine", config, device="cpu")
    network.build(BuildContext((2, T), RuntimeMode.INFERENCE, all_logits=True))
    mila.load_weights(network, GOLDEN / "gpt2_tied")
    ids, logits = expected_logits("gpt2_tied")
    assert relative_error(forward(network, ids), logits) <= 1e-5


def test_a_network_whose_windows_are_in_all_layers_takes_the_weights_of_its_export(tmp_path: Path) -> None:
    """Its config says so by a default, where the folder's lists the layers."""
    config = LlamaConfig(
        vocab_size=23, embedding_dim=8, hidden_dim=12, num_layers=2, num_heads=2, max_seq_len=16, qkv_bias=True,
        sliding_window=3,
    )  # fmt: skip
    network = LlamaTransformer("mine", config, device="cpu")
    network.build(BuildContext((1, T), RuntimeMode.INFERENCE, initialize_parameters=True))
    network.save_pretrained(tmp_path / "export")
    assert read_model_folder(tmp_path / "export").model_type == "qwen2"
    before = contents(network)
    mila.load_weights(network, tmp_path / "export")
    assert contents(network) == before


def test_a_snapshot_in_the_cache_of_the_hugging_face_libraries(tmp_path: Path) -> None:
    """Its files are links out of the folder, to names that are no names of shards."""
    snapshot, blobs = tmp_path / "models--tiny" / "snapshots" / "0123", tmp_path / "models--tiny" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted((GOLDEN / "llama_tied_llama3").iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    requires_equal_logits(snapshot, "llama_tied_llama3")


def test_a_network_with_parameters_of_its_own_is_refused(tmp_path: Path) -> None:
    class Scaled(GptTransformer):
        def parameters(self) -> Iterator[Declaration]:
            yield parameter("scale", (3,), self.dtype, ones)

    config = read_model_folder(GOLDEN / "gpt2_tied").config
    assert isinstance(config, GptConfig)
    network = Scaled("mine", config, device="cpu")
    network.build(BuildContext((B, T), RuntimeMode.INFERENCE, initialize_parameters=True))
    for call in (
        lambda: mila.load_weights(network, GOLDEN / "gpt2_tied"),
        lambda: network.save_pretrained(tmp_path / "x"),
    ):
        with pytest.raises(ConfigurationError, match="model folders have no name for 'scale'"):
            call()
