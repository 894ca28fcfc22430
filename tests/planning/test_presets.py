"""The presets: what is recorded of published models, held against the networks that they make."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from mila import ExecutionContext
from mila.memory.storage import network_dtype
from mila.models.hugging_face.folder import ARCHITECTURES
from mila.planning.presets import Preset, find_preset, preset_names, preset_rows, presets
from mila.planning.report import TargetKind
from mila.planning.targets import read_target
from tests.models.real_configs import REAL_CONFIGS
from tests.planning.reading import has_tied_head

SPECIFICATION = Path(__file__).resolve().parents[2] / "specs" / "targets.md"
ALL = [pytest.param(preset, id=name) for name, preset in presets().items()]
FAMILIES = ("gpt2", "llama-2", "llama-3", "mistral", "qwen2.5", "qwen3", "smollm2", "tinyllama")
PROMISED = [
    *("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "tinyllama-1.1b"),
    *(f"llama-2-{size}" for size in ("7b", "13b", "70b")),
    *(f"llama-{size}" for size in ("3-8b", "3.1-8b", "3.1-70b", "3.1-405b", "3.2-1b", "3.2-3b")),
    *(f"smollm2-{size}" for size in ("135m", "360m", "1.7b")),
    *("mistral-7b", "mistral-7b-v0.1", "mistral-7b-v0.3"),
    *(f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b")),
    *(f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")),
]
#: More than the header of any of these files, which takes about a hundred bytes a tensor.
LONGEST_HEADER = 100_000


@pytest.mark.parametrize("preset", ALL)
def test_a_preset_has_the_parameters_that_its_publisher_ships(preset: Preset) -> None:
    """Bytes of the parameters, with those recorded as no parameters, are those of the publisher's files."""
    target = read_target(preset.name)
    dtype = network_dtype(preset.dtype)
    network = target.make(target.config, ExecutionContext("cpu"), dtype)
    assert network.parameter_count() == preset.parameters
    stored = network.parameter_count() * dtype.itemsize + preset.extra_bytes
    assert preset.total_size in (stored, None)
    if preset.file_size is not None:
        assert 8 < preset.file_size - stored < LONGEST_HEADER
    if preset.stored_elements is not None:  # extras are float32
        assert 4 * (preset.stored_elements - preset.parameters) == preset.extra_bytes
    assert (preset.extra is None) is (preset.extra_bytes == 0)


@pytest.mark.parametrize("preset", ALL)
def test_a_preset_is_a_target(preset: Preset) -> None:
    target = read_target(preset.name)
    assert (target.kind, target.name) == (TargetKind.PRESET, preset.name)
    assert target.model_type == preset.config["model_type"]
    assert target.stored is None
    assert f"{preset.url} ({preset.license})" in target.notes[-1]
    assert read_target(f"preset:{preset.name.upper()}").config == target.config


@pytest.mark.parametrize("preset", ALL)
def test_a_preset_says_where_it_is_from(preset: Preset) -> None:
    assert preset.config_source.startswith(f"https://huggingface.co/{preset.repository}/blob/main/config.json; ")
    is_one_file = preset.size_source.startswith("one file, model.safetensors: no index")
    assert is_one_file or "index" in preset.size_source
    assert preset.total_size is None or not is_one_file
    assert preset.file_size is None or is_one_file
    assert preset.config["architectures"] == [ARCHITECTURES[preset.config["model_type"]].class_name]
    assert preset.config.get("torch_dtype", "float32") == preset.dtype


def test_the_promised_presets_are_there() -> None:
    assert [name for name in PROMISED if find_preset(name) is None] == []
    spellings = [name for preset in presets().values() for name in (preset.name, *preset.aliases)]
    assert len(spellings) == len(set(spellings))
    assert read_target("Mistral-7B").name == "mistral-7b-v0.1"


def test_windows_and_scalings_are_those_of_the_publishers() -> None:
    windows = {name: getattr(read_target(name).config, "sliding_window", None) for name in preset_names()}
    assert {name: window for name, window in windows.items() if window} == {"mistral-7b-v0.1": 4096}
    scaled = [name for name in preset_names() if getattr(read_target(name).config, "rope_scaling", None)]
    assert scaled == [name for name in preset_names() if re.match(r"llama-3\.[12]", name)]
    assert has_tied_head(read_target("gpt2"))


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", "gpt2"),
        ("gpt2-xl", "gpt2-xl"),
        ("llama-2-7b", "Llama-2-7b"),
        ("tinyllama-1.1b", "TinyLlama"),
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("llama-3.2-1b", "Llama-3.2-1B"),
        ("smollm2-135m", "SmolLM2-135M-Instruct"),
        ("mistral-7b-v0.1", "Mistral-7B-v0.1"),
        ("mistral-7b-v0.3", "Mistral-7B-v0.3"),
        ("qwen3-0.6b", "Qwen3-0.6B"),
    ],
)
def test_a_preset_is_the_published_config(tmp_path: Path, name: str, published: str) -> None:
    fields, count = REAL_CONFIGS[published]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_target(name).config == read_target(str(tmp_path)).config
    assert presets()[name].parameters == count


def test_presets_are_data_of_the_package() -> None:
    files = [each.name for each in resources.files("mila.planning.presets").iterdir() if each.name.endswith(".json")]
    assert sorted(files) == sorted(f"{family}.json" for family in FAMILIES)


def test_the_table_of_the_specification_is_that_of_the_presets() -> None:
    lines = SPECIFICATION.read_text("utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| preset "))
    table = [line for line in lines[first + 2 :] if line.startswith("| `")]
    assert table == [
        f"| `{row.preset.name}` | [{row.preset.repository}]({row.preset.url}) | {row.preset.license} "
        f"| {row.preset.parameters:,} | {row.layers} | {row.max_context:,} | {row.preset.dtype} "
        f"| {_size(row.preset)} |"
        for row in preset_rows()
    ]


def _size(preset: Preset) -> str:
    if preset.total_size is not None:
        return f"{preset.total_size:,}"
    if preset.file_size is not None:
        return f"one file of {preset.file_size:,}"
    return "one file" if preset.size_source.startswith("one file") else f"{preset.stored_elements:,} elements"


def test_every_dtype_is_one_of_networks() -> None:
    assert {network_dtype(preset.dtype).itemsize for preset in presets().values()} == {2, np.dtype(np.float32).itemsize}
