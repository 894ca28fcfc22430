"""What is wrong with the tensors of a model folder is told, all of it at once; what is only unusual is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mila
from mila import RuntimeMode
from mila.errors import CheckpointError, ConfigurationError
from mila.models.hugging_face.vocabulary import check_vocabulary
from mila.serialization import open_tensors
from tests.models.folder_cases import GOLDEN
from tests.models.running import (
    Tensors,
    edited,
    expected_logits,
    forward,
    load,
    notes_of,
    relative_error,
    requires_equal_logits,
)

# ---------------------------------------------------------------------- names


def rename(change: Callable[[str], str]) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        renamed = {change(name): array for name, array in tensors.items()}
        tensors.clear()
        tensors.update(renamed)

    return edit


def add_masks(tensors: Tensors) -> None:
    for layer in range(2):
        prefix = "transformer." if "transformer.wte.weight" in tensors else ""
        tensors[f"{prefix}h.{layer}.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), np.uint8))
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float32)


def test_gpt2_with_and_without_prefix_and_with_masks(tmp_path: Path) -> None:
    requires_equal_logits(
        edited(tmp_path / "1", "gpt2_tied", rename(lambda n: n.replace("transformer.", ""))), "gpt2_tied"
    )
    for name in ("gpt2_tied", "gpt2_bare_bfloat16"):
        network = requires_equal_logits(edited(tmp_path / name, name, add_masks), name)
        assert "ignored 4 buffers" in notes_of(network)


def test_frequencies_in_the_file_are_ignored(tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    network = requires_equal_logits(edited(tmp_path / "model", "llama_grouped", edit), "llama_grouped")
    assert "ignored 2 buffers such as model.layers.0.self_attn.rotary_emb.inv_freq" in notes_of(network)


def fuse(tensors: Tensors, *layers: int) -> None:
    for layer in layers:
        for group, fused in ((("q", "k", "v"), "self_attn.qkv_proj"), (("gate", "up"), "mlp.gate_up_proj")):
            place = fused.partition(".")[0]
            for kind in ("weight", "bias"):
                names = [f"model.layers.{layer}.{place}.{part}_proj.{kind}" for part in group]
                if names[0] in tensors:
                    tensors[f"model.layers.{layer}.{fused}.{kind}"] = np.concatenate([tensors.pop(n) for n in names])


@pytest.mark.parametrize("name", ["llama_grouped", "mistral_window", "qwen2_tied", "qwen3_tied"])
def test_fused_projections(tmp_path: Path, name: str) -> None:
    requires_equal_logits(edited(tmp_path / "model", name, lambda tensors: fuse(tensors, 0, 1)), name)


def test_square_matrices_are_transposed_too(tmp_path: Path) -> None:
    network = load(GOLDEN / "gpt2_tied")
    weights = dict(zip(network.get_parameter_names(), network.get_parameters(), strict=True))
    with open_tensors(GOLDEN / "gpt2_tied") as source:
        stored = source.read("transformer.h.1.attn.c_proj.weight")
        assert stored.shape == (12, 12)
        assert np.array_equal(weights["block_1.out_proj.weight"], stored.T)


def both_fused_and_separate(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.qkv_proj.weight"] = np.zeros((24, 12), np.float32)


def with_and_without_prefix(tensors: Tensors) -> None:
    tensors["norm.weight"] = tensors.pop("model.norm.weight")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            both_fused_and_separate,
            "block_0.qkv_proj.weight is there twice, as model.layers.0.self_attn.q_proj.weight, ",
        ),
        (lambda tensors: fuse(tensors, 1), "mixed names: model.layers.0.self_attn.q_proj.weight, "),
        (with_and_without_prefix, "mixed names: model.embed_tokens.weight with and norm.weight without the prefix"),
    ],
)
def test_mixed_names_are_refused(tmp_path: Path, edit: Callable[[Tensors], None], message: str) -> None:
    folder = edited(tmp_path / "model", "llama_grouped", edit)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert message in str(caught.value)


def test_everything_missing_unexpected_and_mismatched_is_told_at_once(tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        del tensors["model.layers.0.self_attn.k_proj.weight"]
        tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros((14, 12), np.float32)
        tensors["model.norm.weight"] = np.zeros(13, np.float32)
        tensors["model.layers.1.mlp.down_proj.weight"] = np.zeros((14, 12), np.float32)
        tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.int32)
        tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((14, 12), ml_dtypes.float8_e4m3fn)

    folder = edited(tmp_path / "model", "llama_grouped", edit)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for part in (
        "missing model.layers.0.self_attn.k_proj.weight: expected float32 (6, 12)",
        "unexpected model.layers.2.mlp.up_proj.weight",
        "model.norm.weight: expected shape (12,), got (13,)",
        "model.layers.1.mlp.down_proj.weight: expected shape (12, 14), got (14, 12)",
        "lm_head.weight: expected float32, got int32, which is never converted",
        "model.layers.0.mlp.up_proj.weight: expected float32, got float8_e4m3fn, which is never converted",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layers", [3, 10**9])
def test_more_layers_than_the_weights_have(tmp_path: Path, layers: int) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors: (does not fit|expected the weights of 1000000000)"):
        load(edited(tmp_path / "model", "llama_grouped", num_hidden_layers=layers))


# ---------------------------------------------------------------------- the head


def add_head(change: float, dtype: Any = np.float32) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        head = tensors["model.embed_tokens.weight"].copy()
        head[-1, -1] += change
        tensors["lm_head.weight"] = head.astype(dtype)

    return edit


def test_a_head_that_equals_the_table_is_stored_once(tmp_path: Path) -> None:
    network = requires_equal_logits(edited(tmp_path / "model", "qwen2_tied", add_head(0.0)), "qwen2_tied")
    assert "lm_head.weight equals model.embed_tokens.weight" in notes_of(network)
    requires_equal_logits(edited(tmp_path / "wider", "qwen2_tied", add_head(0.0, np.float64)), "qwen2_tied")


def test_a_tied_config_with_another_head_is_a_contradiction(tmp_path: Path) -> None:
    folder = edited(tmp_path / "model", "qwen2_tied", add_head(1.0))
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for part in (
        "tie_word_embeddings = True",
        "lm_head.weight",
        "differs",
        "pass tie_word_embeddings=False",
        "or True",
    ):
        assert part in str(caught.value)
    network = requires_equal_logits(folder, "qwen2_tied", tie_word_embeddings=True)
    assert "lm_head.weight is not used" in notes_of(network)
    untied = load(folder, tie_word_embeddings=False)
    ids, logits = expected_logits("qwen2_tied")
    assert relative_error(forward(untied, ids)[..., :-1], logits[..., :-1]) <= 1e-5
    assert relative_error(forward(untied, ids), logits) > 1e-2


def test_an_untied_config_without_a_head_is_a_contradiction(tmp_path: Path) -> None:
    folder = edited(tmp_path / "model", "qwen2_tied", lambda tensors: None, tie_word_embeddings=False)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for part in ("tie_word_embeddings = False", "have no lm_head.weight", "pass tie_word_embeddings=True"):
        assert part in str(caught.value)
    requires_equal_logits(folder, "qwen2_tied", tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight"):
        load(folder, tie_word_embeddings=False)


def remove_field(folder: Path, key: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_config_that_is_silent_about_the_head(tmp_path: Path) -> None:
    folder = edited(tmp_path / "model", "qwen2_tied")
    remove_field(folder, "tie_word_embeddings")
    with pytest.raises(CheckpointError, match=r"says nothing about tie_word_embeddings, for a qwen2 False"):
        load(folder)


def test_a_built_network_does_not_decide_what_the_folder_leaves_open(tmp_path: Path) -> None:
    """The default of a silent config is the folder's word too: another head is a contradiction, and can be answered."""

    def add(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1

    network = load(GOLDEN / "gpt2_tied")
    folder = edited(tmp_path / "model", "gpt2_tied", add)
    for is_silent in (False, True):
        if is_silent:
            remove_field(folder, "tie_word_embeddings")
        with pytest.raises(CheckpointError, match=r"lm_head\.weight that differs from transformer\.wte\.weight"):
            mila.load_weights(network, folder)
    with pytest.raises(ConfigurationError, match="has tie_word_embeddings=True, got tie_word_embeddings=False"):
        mila.load_weights(network, folder, tie_word_embeddings=False)
    mila.load_weights(network, folder, tie_word_embeddings=True)
    assert "lm_head.weight is not used" in notes_of(network)


# ---------------------------------------------------------------------- vocabulary and dropout


def write_tokenizer(folder: Path, count: int) -> None:
    vocabulary = {f"token {index}": index for index in range(count - 1)}
    added = [{"id": count - 1, "content": "<end>"}]
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer"),
        (b"", "expected a tokenizer in JSON, got ''"),
        (b'{"model": {"vocab": {"a": 1', "expected a tokenizer of valid JSON, got "),
        (b'{"added_tokens": ' + b"[" * 100_000, "expected a tokenizer of valid JSON, got "),
        (b'{"model": {"vocab": {"\xff": 1}}}', "expected text in UTF-8"),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    folder = edited(tmp_path / "model", "llama_grouped")
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert str(caught.value).startswith(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("tokenizer", "count"),
    [
        ({"model": {"vocab": {"vocab": 3, "added_tokens": 30, '"vocab": {': 1}, "merges": []}}, 31),
        ({"added_tokens": [{"id": 35, "content": '"vocab": [1]'}], "model": {"type": "BPE", "vocab": {"a": 0}}}, 36),
        ({"model": {"type": "Unigram", "vocab": [["a", -1.5]] * 20}}, 20),
        ({"model": {}}, 0),
    ],
)
def test_tokens_are_counted_in_every_form(tmp_path: Path, tokenizer: dict[str, Any], count: int) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    note = f"the table has 37 rows, of which {37 - count} have no token in tokenizer.json"
    assert check_vocabulary(tmp_path, 37) == ((note,) if count else ())


def test_a_padded_vocabulary_is_told_and_a_larger_one_refused(tmp_path: Path) -> None:
    folder = edited(tmp_path / "model", "llama_grouped")
    for count, note in ((37, ""), (31, "the table has 37 rows, of which 6 have no token in tokenizer.json")):
        write_tokenizer(folder, count)
        assert notes_of(load(folder)) == note
    write_tokenizer(folder, 38)
    with pytest.raises(
        CheckpointError, match="expected at most 37 tokens, the rows of the model's table, got ids up to 37"
    ):
        load(folder)


def test_training_needs_a_decision_about_dropout(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(GOLDEN / "gpt2_tied", runtime_mode=RuntimeMode.TRAINING, all_logits=False)
    assert "embd_pdrop = 0.1, resid_pdrop = 0.1, attn_pdrop = 0.1; for training pass dropout=0.0" in str(caught.value)
    network = load(GOLDEN / "gpt2_tied", runtime_mode=RuntimeMode.TRAINING, all_logits=False, dropout=0.3)
    assert network.config.dropout == 0.3
    folder = edited(tmp_path / "model", "llama_grouped", attention_dropout=0.1)
    with pytest.raises(ConfigurationError, match=r"attention_dropout = 0\.1"):
        load(folder, runtime_mode=RuntimeMode.TRAINING, all_logits=False)
    load(folder, runtime_mode=RuntimeMode.TRAINING, all_logits=False, dropout=0.0)
    requires_equal_logits(folder, "llama_grouped")
