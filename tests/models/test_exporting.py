"""Networks written as model folders: the architecture, the fields, the files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mila
from mila import BuildContext, RuntimeMode
from mila.components.rope_scaling import LinearScaling
from mila.errors import CheckpointError, ConfigurationError, LifecycleError
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer
from mila.serialization import open_tensors
from tests.models.folder_cases import GOLDEN, SHAPE
from tests.models.running import contents, edited, forward, load, relative_error, requires_equal_logits

GPT: dict[str, Any] = {
    "vocab_size": 23,
    "embedding_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "max_seq_len": 16,
}
LLAMA: dict[str, Any] = GPT | {"hidden_dim": 12, "norm_epsilon": 1e-4}

#: Configs that no folder was read for, and the architecture that their export has.
HAND_MADE: list[tuple[GptConfig | LlamaConfig, str]] = [
    (GptConfig(**GPT), "gpt2"),
    (GptConfig(**GPT, tie_word_embeddings=False, activation="gelu", attention_scaling="none", hidden_dim=20), "gpt2"),
    (LlamaConfig(**LLAMA), "llama"),
    (LlamaConfig(**LLAMA, qkv_bias=True, out_bias=True, rope_scaling=LinearScaling(factor=2.0)), "llama"),
    (LlamaConfig(**LLAMA, sliding_window=3, num_kv_heads=1), "mistral"),
    (LlamaConfig(**(LLAMA | {"embedding_dim": 9}), head_dim=4, tie_word_embeddings=True), "mistral"),
    (LlamaConfig(**LLAMA, qkv_bias=True), "qwen2"),
    (LlamaConfig(**LLAMA, qkv_bias=True, sliding_window=3, sliding_layers=(0,)), "qwen2"),
    (LlamaConfig(**LLAMA, qk_norm=True, head_dim=6), "qwen3"),
    (LlamaConfig(**LLAMA, qk_norm=True, qkv_bias=True, out_bias=True, sliding_window=5), "qwen3"),
]
each_config = pytest.mark.parametrize(("config", "model_type"), HAND_MADE)


def build(config: GptConfig | LlamaConfig, dtype: str = "float32") -> LanguageModel[Any]:
    network: LanguageModel[Any]
    if isinstance(config, GptConfig):
        network = GptTransformer("mine", config, device="cpu", dtype=dtype, seed=5)
    else:
        network = LlamaTransformer("mine", config, device="cpu", dtype=dtype, seed=5)
    network.build(BuildContext(SHAPE, RuntimeMode.INFERENCE, initialize_parameters=True, all_logits=True))
    return network


def draw_ids() -> Any:
    return np.random.default_rng(1).integers(0, 23, SHAPE).astype(np.int32)


def config_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return content


@each_config
def test_hand_made_networks_find_their_architecture(
    config: GptConfig | LlamaConfig, model_type: str, tmp_path: Path
) -> None:
    network = build(config)
    network.save_pretrained(tmp_path / "export")
    assert config_of(tmp_path / "export")["model_type"] == model_type
    loaded = load(tmp_path / "export")
    assert contents(loaded) == contents(network)
    assert np.array_equal(forward(loaded, draw_ids()), forward(network, draw_ids()))


@pytest.mark.parity
@each_config
def test_transformers_opens_hand_made_networks(
    config: GptConfig | LlamaConfig, model_type: str, tmp_path: Path
) -> None:
    torch_folders = pytest.importorskip("tests.models.torch_folders")
    network = build(config)
    network.save_pretrained(tmp_path / "export")
    opened, report = torch_folders.load_model(tmp_path / "export")
    assert {key: value for key, value in report.items() if value} == {}
    assert relative_error(forward(network, draw_ids()), torch_folders.logits_of(opened, draw_ids())) <= 1e-4


@pytest.mark.parametrize(
    ("config", "reasons"),
    [
        (GptConfig(**GPT, bias=False), ["gpt2 has no bias=False", "llama has no GptConfig"]),
        (
            LlamaConfig(**LLAMA, out_bias=True),
            ["llama has no out_bias=True", "mistral has no out_bias=True", "qwen3 has no out_bias=True"],
        ),
        (LlamaConfig(**LLAMA, sliding_window=3, sliding_layers=(1,)), ["mistral has no sliding_layers=(1,)"]),
    ],
)
def test_what_no_architecture_can_say_is_refused(
    config: GptConfig | LlamaConfig, reasons: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(config).save_pretrained(tmp_path / "export")
    assert all(reason in str(caught.value) for reason in reasons)
    assert not list(tmp_path.iterdir())


def test_an_unbuilt_network_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(LifecycleError, match="save_pretrained needs a built component"):
        GptTransformer("mine", GptConfig(**GPT)).save_pretrained(tmp_path / "export")


def test_files_and_fields_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the folder was named from another working folder."""
    fields: dict[str, Any] = {
        "bos_token_id": 7,
        "task_specific_params": {"x": 1},
        "_name_or_path": "elsewhere",
        "dtype": "float32",
    }
    folder = edited(tmp_path / "model", "llama_grouped", **fields)
    copied = ["tokenizer_config.json", "special_tokens_map.json", "merges.txt", "chat_template.jinja", "vocab.json"]
    for name in [*copied, "generation_config.json", "README.md", "training_args.bin"]:
        (folder / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    network = load(Path("model"))
    monkeypatch.chdir("/")
    network.save_pretrained(tmp_path / "export")
    names = {file.name for file in (tmp_path / "export").iterdir()}
    assert names == {*copied, "generation_config.json", "config.json", "model.safetensors", "mila_export.json"}
    written = config_of(tmp_path / "export")
    assert (written["bos_token_id"], written["task_specific_params"]) == (7, {"x": 1})
    assert written["architectures"] == ["LlamaForCausalLM"]
    assert (written["torch_dtype"], written["rope_theta"], written["rope_scaling"]) == ("float32", 10000.0, None)
    assert not {"_name_or_path", "rope_parameters", "dtype", "transformers_version"} & set(written)


def test_ids_and_dropout_are_those_of_the_network_and_not_defaults(tmp_path: Path) -> None:
    build(GptConfig(**GPT)).save_pretrained(tmp_path / "none")
    written = config_of(tmp_path / "none")
    assert [written[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None, None, None]
    assert [written[f"{name}_pdrop"] for name in ("embd", "resid", "attn")] == [0.0, 0.0, 0.0]
    build(GptConfig(**GPT, dropout=0.2)).save_pretrained(tmp_path / "own")
    written = config_of(tmp_path / "own")
    assert [written[f"{name}_pdrop"] for name in ("embd", "resid", "attn")] == [0.2, 0.2, 0.0]
    load(GOLDEN / "gpt2_tied").save_pretrained(tmp_path / "kept")
    written = config_of(tmp_path / "kept")
    assert [written[f"{name}_pdrop"] for name in ("embd", "resid", "attn")] == [0.1, 0.1, 0.1]


def test_the_architecture_stays_that_of_the_folder(tmp_path: Path) -> None:
    """A Mistral without a window could be a Llama as well."""
    build(LlamaConfig(**LLAMA, sliding_window=3)).save_pretrained(tmp_path / "mistral")
    config = config_of(tmp_path / "mistral") | {"sliding_window": None}
    (tmp_path / "mistral" / "config.json").write_text(json.dumps(config))
    load(tmp_path / "mistral").save_pretrained(tmp_path / "again")
    assert config_of(tmp_path / "again")["model_type"] == "mistral"


@pytest.mark.parametrize(("dtype", "stored"), [(None, "F32"), ("bfloat16", "BF16"), ("float16", "F16")])
def test_dtype_and_shards_as_asked(dtype: str | None, stored: str, tmp_path: Path) -> None:
    network = load(GOLDEN / "gpt2_tied")
    network.save_pretrained(tmp_path / "export", dtype=dtype, max_shard_size="4KB")
    shards = sorted(file.name for file in (tmp_path / "export").glob("*.safetensors"))
    assert len(shards) > 1
    assert shards[-1] == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors"
    with open_tensors(tmp_path / "export") as source:
        assert {entry.dtype_name for entry in source.tensors.values()} == {stored}
        assert source.metadata["format"] == "pt"
    if dtype is None:
        requires_equal_logits(tmp_path / "export", "gpt2_tied")
    elif dtype == "bfloat16":
        assert relative_error(forward(load(tmp_path / "export"), draw_ids()), forward(network, draw_ids())) < 0.05


def test_values_beyond_the_range_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    network = build(GptConfig(**GPT), dtype="float64")
    network.get_parameters()[0][0, 0] = 1e300
    with pytest.raises(CheckpointError, match=r"transformer\.wte\.weight"):
        network.save_pretrained(tmp_path / "export", dtype="float32")
    assert not list(tmp_path.iterdir())
    network.save_pretrained(tmp_path / "export")
    assert config_of(tmp_path / "export")["torch_dtype"] == "float64"
    assert contents(mila.from_pretrained(tmp_path / "export", context_length=4, dtype="float64")) == contents(network)


def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    folder = edited(tmp_path / "model", "llama_grouped")
    network = load(folder)
    with pytest.raises(CheckpointError, match="expected a free name"):
        network.save_pretrained(folder)
    network.save_pretrained(tmp_path / "export")
    again = load(tmp_path / "export")
    again.get_parameters()[0][...] = 0
    again.save_pretrained(tmp_path / "export")
    assert contents(load(tmp_path / "export")) == contents(again) != contents(network)
