"""Arguments that are none: one error of Mila each, with the argument, what was expected and what came."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mila
from mila.errors import CheckpointError, ConfigurationError, MilaError, ShapeError
from mila.models import export_pretrained, read_model_folder
from mila.models.gguf_import.importing import import_gguf
from tests.models.folder_cases import GOLDEN
from tests.models.running import load

FOLDER = GOLDEN / "gpt2_tied"
NO_PATHS: tuple[Any, ...] = (None, 3, b"x", ["a"], True)
Use = Callable[[Any, Any, Path], object]
#: What takes a path, with what it calls the argument; called with a built network, the value and a free name.
PATHS: dict[str, tuple[str, Use]] = {
    "from_pretrained": ("folder", lambda network, value, free: mila.from_pretrained(value, context_length=8)),
    "read_model_folder": ("folder", lambda network, value, free: read_model_folder(value)),
    "mila.load_weights": ("folder", lambda network, value, free: mila.load_weights(network, value)),
    "load_weights": ("path", lambda network, value, free: network.load_weights(value)),
    "save_weights": ("path", lambda network, value, free: network.save_weights(value)),
    "save_pretrained": ("folder", lambda network, value, free: network.save_pretrained(value)),
    "import_gguf": ("file", lambda network, value, free: import_gguf(value, free)),
    "import_gguf, out": ("out_folder", lambda network, value, free: import_gguf(free, value)),
}


@pytest.fixture(scope="module")
def network() -> mila.Network[Any]:
    return load(FOLDER)


@pytest.mark.parametrize(("argument", "use"), PATHS.values(), ids=PATHS)
def test_what_is_no_path_is_refused(network: mila.Network[Any], tmp_path: Path, argument: str, use: Use) -> None:
    for value in NO_PATHS:
        with pytest.raises(ConfigurationError) as caught:
            use(network, value, tmp_path / "free")
        shown = re.escape(f"[{value[0]!r}]" if isinstance(value, list) else repr(value))
        assert re.fullmatch(f"{argument}: expected a path as a text or a pathlib.Path, got {shown}", str(caught.value))
    for value in ("a\0b", "a\ud800b"):
        with pytest.raises(CheckpointError, match=r"'a\\(x00|ud800)b': expected a path that the system can open, got"):
            use(network, value, tmp_path / "free")
    assert list(tmp_path.iterdir()) == []


WRONG: list[tuple[dict[str, Any], type[MilaError], str]] = [
    ({"context_length": -1}, ShapeError, "from_pretrained: context_length must be at least 1, got -1"),
    ({"context_length": 8.0}, ShapeError, "from_pretrained: context_length must be an integer, got 8.0"),
    ({"context_length": "8"}, ShapeError, "from_pretrained: context_length must be an integer, got '8'"),
    ({"batch_size": 0}, ShapeError, "from_pretrained: batch_size must be at least 1, got 0"),
    ({"batch_size": True}, ShapeError, "from_pretrained: batch_size must be an integer, got True"),
    (
        {"mode": "x"},
        ConfigurationError,
        "from_pretrained: has no argument mode; options of the build are init",
    ),
    ({"shape": (1, 2)}, ConfigurationError, "from_pretrained: has no argument shape; options of the build are initial"),
    ({"runtime_mode": "inference"}, ConfigurationError, "runtime_mode must be a RuntimeMode, got 'inference'"),
    ({"prefill_size": 0}, ShapeError, "prefill_size must be at least 1, got 0"),
    ({"capture": 3}, ConfigurationError, "capture must be a list of paths, got 3"),
    ({"all_logits": "x"}, ConfigurationError, "all_logits must be True or False, got 'x'"),
    ({"layout": "shared"}, ConfigurationError, "layout must be a Layout, got 'shared'"),
    ({"device": 3}, MilaError, "device"),
    ({"device": "tpu"}, MilaError, "device"),
    ({"dtype": "int8"}, MilaError, "dtype: expected one of float32, "),
    ({"dtype": 3}, MilaError, "dtype: expected one of float32, "),
    ({"on_progress": 3}, ConfigurationError, "on_progress: expected a function or None, got 3"),
    ({"ignore_fields": 3}, ConfigurationError, "ignore_fields: expected a list of names, got 3"),
    ({"ignore_fields": "x"}, ConfigurationError, "ignore_fields: expected a list of names, got 'x'"),
    ({"ignore_fields": [1]}, ConfigurationError, "ignore_fields: expected a list of names, got [1]"),
    ({"tie_word_embeddings": "x"}, ConfigurationError, "tie_word_embeddings: expected True, False or None, got 'x'"),
    ({"dropout": -1}, ConfigurationError, "dropout: expected a number from 0 to below 1 or None, got -1"),
    ({"dropout": 1.0}, ConfigurationError, "dropout: expected a number from 0 to below 1 or None, got 1.0"),
    ({"dropout": "x"}, ConfigurationError, "dropout: expected a number from 0 to below 1 or None, got 'x'"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG, ids=[str(options) for options, *_ in WRONG])
def test_a_wrong_argument_is_blamed(
    network: mila.Network[Any], options: dict[str, Any], error: type[MilaError], message: str
) -> None:
    with pytest.raises(error) as caught:
        mila.from_pretrained(FOLDER, **({"context_length": 8} | options))
    assert message in str(caught.value)
    assert "config.json" not in str(caught.value)
    if options.keys() & {"on_progress", "ignore_fields", "tie_word_embeddings", "dropout"}:
        with pytest.raises(error) as caught:
            mila.load_weights(network, FOLDER, **options)
        assert message in str(caught.value)


@pytest.mark.parametrize("root", ["tiny", None, 3])
def test_swapped_arguments_are_told(network: Any, root: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^root: expected a language model, a text .*, got {root!r}$"):
        mila.load_weights(root, network)
    with pytest.raises(ConfigurationError, match=f"^network: expected a language .*, got {root!r}$"):
        export_pretrained(root, "tiny")


@pytest.mark.parametrize("size", ["x", 0, None, 1.5])
def test_a_shard_size_is_checked_before_anything_is_written(network: Any, tmp_path: Path, size: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^max_shard_size: expected a size "):
        network.save_pretrained(tmp_path / "new", max_shard_size=size)


def test_an_execution_context_says_with_how_many_threads() -> None:
    context = mila.ExecutionContext("cpu", threads=1)
    assert load(FOLDER, device=context).get_execution_context() is context
