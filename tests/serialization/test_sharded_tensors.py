"""Shards are read as one, and an index and its files have to agree about everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mila.errors import CheckpointError
from mila.serialization import SafetensorsFile, ShardedTensors, TensorSource, open_tensors, save_tensors
from tests.serialization.safetensors_bytes import file_bytes

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_index(folder: Path, weight_map: object, name: str = INDEX) -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {"total_size": 1.5e3}, "weight_map": weight_map}))
    return path


def write_shards(folder: Path) -> dict[str, str]:
    """Write two shards with the tensors a and b, and c; return the right weight map."""
    folder.mkdir(exist_ok=True)
    save_tensors(folder / FIRST, {"b": np.full(3, 2, np.float32), "a": np.full(2, 1, np.float32)}, {"k": "v", "n": "1"})
    save_tensors(folder / SECOND, {"c": np.full((2, 2), 3, np.int8)}, {"k": "v", "n": "2"})
    weight_map = {"a": FIRST, "b": FIRST, "c": SECOND}
    write_index(folder, weight_map)
    return weight_map


@pytest.mark.parametrize("name", ["", INDEX])
def test_shards_are_read_like_one_file(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path)
    with open_tensors(tmp_path / name) as source:
        assert source.path == tmp_path / INDEX
        assert list(source.tensors) == ["b", "a", "c"]
        assert dict(source.metadata) == {"k": "v"}
        assert source.entry("c").shape == (2, 2)
        assert source.read("b").tolist() == [2, 2, 2]
        target, part = np.zeros((2, 2), np.int8), np.zeros(1, np.float32)
        source.copy_into("c", target)
        source.copy_range_into("a", 1, part)
        source.drop_pages("b")
        assert target.tolist() == [[3, 3], [3, 3]]
        assert part.tolist() == [1]
        for call in (lambda: source.read("d"), lambda: source.entry("d"), lambda: source.copy_into("d", target)):
            with pytest.raises(CheckpointError, match="tensor 'd'"):
                call()


def test_aliases_of_all_shards_serve(tmp_path: Path) -> None:
    table = np.ones(3, np.float32)
    save_tensors(tmp_path / FIRST, {"wte": table, "head": table})
    save_tensors(tmp_path / SECOND, {"c": table})
    for weight_map in ({"wte": FIRST, "c": SECOND}, {"wte": FIRST, "head": FIRST, "c": SECOND}):
        write_index(tmp_path, weight_map)
        with ShardedTensors(tmp_path) as source:
            assert dict(source.aliases) == {"head": "wte"}
            assert set(source.tensors) == {"wte", "c"}
            assert source.read("head").tolist() == [1, 1, 1]


def outside(folder: Path) -> None:
    save_tensors(folder.parent / "outside.safetensors", {"a": np.ones(1, np.float32)})


def link_outside(folder: Path) -> None:
    outside(folder)
    (folder / "link.safetensors").symlink_to(folder.parent / "outside.safetensors")


def link_folder_outside(folder: Path) -> None:
    outside(folder)
    (folder / "linked").symlink_to(folder.parent)


NOTHING: Callable[[Path], None] = lambda folder: None  # noqa: E731
OUTSIDE_PATHS: dict[str, tuple[Callable[[Path], None], str]] = {
    "parent": (outside, "../outside.safetensors"),
    "parent inside": (outside, "sub/../../outside.safetensors"),
    "absolute": (NOTHING, "/etc/passwd"),
    "two slashes": (NOTHING, "//host/share"),
    "backslash": (NOTHING, "..\\outside.safetensors"),
    "drive": (NOTHING, "C:outside.safetensors"),
    "NUL": (NOTHING, "a\0b"),
    "empty": (NOTHING, ""),
    "itself": (NOTHING, "."),
    "link": (link_outside, "link.safetensors"),
    "link of a folder": (link_folder_outside, "linked/outside.safetensors"),
}


@pytest.mark.parametrize("prepare, shard", OUTSIDE_PATHS.values(), ids=OUTSIDE_PATHS.keys())
def test_a_shard_outside_the_folder_is_refused(tmp_path: Path, prepare: Callable[[Path], None], shard: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    prepare(folder)
    write_index(folder, {"a": shard})
    with pytest.raises(CheckpointError, match="expected a shard inside the index's folder"):
        ShardedTensors(folder)


def test_links_are_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    link_outside(folder)
    write_index(folder, {"a": "link.safetensors"})
    with open_tensors(folder, follow_links=True) as source:
        assert source.read("a").tolist() == [1]


def test_a_link_that_stays_inside_is_no_matter(tmp_path: Path) -> None:
    save_tensors(tmp_path / "b.safetensors", {"a": np.ones(1, np.float32)})
    (tmp_path / "l.safetensors").symlink_to("b.safetensors")
    write_index(tmp_path, {"a": "l.safetensors"})
    ShardedTensors(tmp_path).close()


DISAGREEMENTS: dict[str, tuple[dict[str, object], str]] = {
    "tensor in the other shard": ({"a": SECOND}, "tensor 'a': expected it in 'model-00002"),
    "tensor that no shard has": ({"d": FIRST}, "tensor 'd': expected it in 'model-00001.*no such tensor there"),
    "tensor that the index lacks": ({"b": None}, "tensor 'b': expected an entry in the index"),
    "missing shard": ({"d": "other.safetensors"}, "expected the shard 'other.safetensors', got no such file"),
    "shard that is a folder": ({"d": "folder"}, "expected the shard 'folder', got no such file"),
    "shard of an endless name": ({"d": "n" * 5000}, "got no such file"),
    "shard that is a number": ({"d": 1}, "tensor 'd': expected the name of a file, got 1"),
    "family with a hole": ({"c": None}, "expected the shards 1 to 2 of 'model', got \\[1\\]"),
    "second family": ({"d": "other-00001-of-00001.safetensors"}, "expected one family of shards"),
    "number beyond the count": ({"c": "model-00003-of-00002.safetensors"}, "the shards 1 to 2"),
}


@pytest.mark.parametrize("change, message", DISAGREEMENTS.values(), ids=DISAGREEMENTS.keys())
def test_an_index_that_disagrees_with_its_files_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    weight_map = {**write_shards(tmp_path), **change}
    (tmp_path / "folder").mkdir()
    write_index(tmp_path, {name: shard for name, shard in weight_map.items() if shard is not None})
    with pytest.raises(CheckpointError, match=message):
        ShardedTensors(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_tensors(tmp_path / SECOND, {"c": np.zeros(1, np.int8), "a": np.zeros(1, np.int8)})
    with pytest.raises(CheckpointError, match=r"tensor 'a': expected one shard, got it in 'model-.* and 'model-"):
        ShardedTensors(tmp_path)


def test_an_alias_that_another_shard_stores_is_refused(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path)
    array = np.zeros(1, np.int8)
    save_tensors(tmp_path / SECOND, {"c": array, "a": array})
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="tensor 'a': expected one shard"):
        ShardedTensors(tmp_path)


def test_a_malformed_shard_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / SECOND).write_bytes(b"<html>" + bytes(10))
    with pytest.raises(CheckpointError, match=r"model-00002.*incomplete download"):
        ShardedTensors(tmp_path)


INDEXES: dict[str, tuple[str, str]] = {
    "empty": ("", "starts with"),
    "list": ("[]", "starts with"),
    "no weight map": ("{}", "a weight_map that maps tensors to files, got None"),
    "weight map that is a list": ('{"weight_map":[]}', "a weight_map"),
    "tensor twice": ('{"weight_map":{"a":"x","a":"x"}}', "the key 'a' twice"),
    "two weight maps": ('{"weight_map":{},"weight_map":{}}', "the key 'weight_map' twice"),
    "NaN": ('{"metadata":{"total_size":NaN},"weight_map":{}}', "got NaN"),
    "NUL": ('{"weight_map":{}}\0', "NUL"),
    "deep": ('{"a":' * 100_000, "nesting too deep"),
}


@pytest.mark.parametrize("text, message", INDEXES.values(), ids=INDEXES.keys())
def test_a_malformed_index_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        ShardedTensors(tmp_path)


def test_an_index_may_be_empty_and_may_not_be_endless(tmp_path: Path) -> None:
    index = write_index(tmp_path, {})
    with ShardedTensors(tmp_path) as source:
        assert dict(source.tensors) == {}
    with pytest.raises(CheckpointError, match="at most 10 bytes of JSON"):
        ShardedTensors(index, header_limit=10)
    with pytest.raises(CheckpointError, match="could not be opened"):
        ShardedTensors(tmp_path / "missing.index.json")


def test_opening_finds_the_file_the_index_or_neither(tmp_path: Path) -> None:
    single, sharded, both, other = (tmp_path / name for name in ("single", "sharded", "both", "other"))
    write_shards(sharded)
    write_shards(both)
    write_index(sharded, write_shards(sharded), "diffusion.safetensors.index.json")
    for folder in (single, other):
        folder.mkdir()
    for path in (single / "model.safetensors", both / "model.safetensors", other / "adapter.safetensors"):
        path.write_bytes(file_bytes("{}"))
    opened: list[tuple[Path, type[TensorSource]]] = [
        (single, SafetensorsFile),
        (single / "model.safetensors", SafetensorsFile),
        (other / "adapter.safetensors", SafetensorsFile),
        (sharded, ShardedTensors),
        (sharded / "diffusion.safetensors.index.json", ShardedTensors),
        (both / INDEX, ShardedTensors),
    ]
    for path, kind in opened:
        with open_tensors(path) as source:
            assert type(source) is kind
    for path, message in (
        (both, "got both"),
        (other, "got neither, but \\['adapter.safetensors'\\]"),
        (tmp_path, "got neither"),
        (tmp_path / "missing", "could not be opened"),
        (tmp_path / ("n" * 5000), "could not be opened"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_tensors(path)


def test_a_stray_shard_is_never_merged(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_tensors(tmp_path / "stray.safetensors", {"a": np.zeros(1, np.int8), "d": np.zeros(1, np.int8)})
    with ShardedTensors(tmp_path) as source:
        assert set(source.tensors) == {"a", "b", "c"}
