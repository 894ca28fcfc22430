"""Shards are split as the Hugging Face libraries split them, and an index never names what is not whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from mila.errors import CheckpointError, ConfigurationError, LifecycleError
from mila.serialization import ShardedWriter, open_tensors, parse_size
from mila.serialization.dtypes import format_dtype
from mila.serialization.sharded_writer import split_into_shards
from mila.serialization.tensor_writer import Contents, Declared
from tests.serialization.faults import faults
from tests.serialization.folders import names_in

Array = np.ndarray[Any, np.dtype[Any]]
INDEX = "model.safetensors.index.json"


def write_all(
    folder: Path, limit: int | str, tensors: dict[str, Array], aliases: dict[str, str] | None = None
) -> dict[str, str]:
    """Write tensors and return the weight map, which is empty where one file was enough."""
    with ShardedWriter(folder, limit) as writer:
        for name, array in tensors.items():
            writer.declare(name, array.dtype, array.shape)
        for alias, name in (aliases or {}).items():
            writer.declare_alias(alias, name)
        writer.set_metadata("format", "pt")
        writer.begin()
        for name, array in tensors.items():
            writer.write(name, array)
            assert not (folder / INDEX).exists()
    index = folder / INDEX
    return dict(json.loads(index.read_text())["weight_map"]) if index.exists() else {}


def bytes_of(sizes: dict[str, int]) -> dict[str, Array]:
    return {name: np.full(size, position, np.int8) for position, (name, size) in enumerate(sizes.items())}


def numbered(count: int) -> list[str]:
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


SPLITS: dict[str, tuple[dict[str, int], int, list[list[str]]]] = {
    "nothing": ({}, 10, [[]]),
    "all in one": ({"a": 4, "b": 6}, 10, [["a", "b"]]),
    "one byte too many": ({"a": 4, "b": 7}, 10, [["a"], ["b"]]),
    "exactly the limit": ({"a": 10, "b": 10}, 10, [["a"], ["b"]]),
    "larger than a shard": ({"a": 11}, 10, [["a"]]),
    "larger than a shard, between": ({"a": 2, "b": 11, "c": 2, "d": 9}, 10, [["b"], ["a", "c"], ["d"]]),
    "never back": ({"a": 6, "b": 6, "c": 2, "d": 6, "e": 2, "f": 2}, 10, [["a"], ["b", "c"], ["d", "e", "f"]]),
    "without data": ({"a": 0, "b": 10, "c": 0}, 10, [["a", "b", "c"]]),
}


@pytest.mark.parametrize("sizes, limit, expected", SPLITS.values(), ids=SPLITS.keys())
def test_tensors_are_split_in_order(
    tmp_path: Path, sizes: dict[str, int], limit: int, expected: list[list[str]]
) -> None:
    tensors = bytes_of(sizes)
    weight_map = write_all(tmp_path, limit, tensors)
    if len(expected) == 1:
        assert names_in(tmp_path) == ["model.safetensors"]
    else:
        files = numbered(len(expected))
        assert names_in(tmp_path) == [*files, INDEX]
        assert weight_map == {name: file for file, names in zip(files, expected, strict=True) for name in names}
        assert json.loads((tmp_path / INDEX).read_text())["metadata"] == {"total_size": sum(sizes.values())}
    with open_tensors(tmp_path) as source:
        assert set(source.tensors) == set(sizes)
        assert source.metadata["format"] == "pt"
        for name, array in tensors.items():
            assert np.array_equal(source.read(name), array)


def test_other_names_of_a_tensor_stay_with_it_and_take_no_place(tmp_path: Path) -> None:
    weight_map = write_all(tmp_path, 10, bytes_of({"a": 6, "b": 6, "c": 4}), {"head": "a", "z": "b"})
    assert weight_map == dict(zip("abc", (numbered(2)[0], numbered(2)[1], numbered(2)[1]), strict=True))
    with open_tensors(tmp_path) as source:
        assert dict(source.aliases) == {"head": "a", "z": "b"}
        assert np.array_equal(source.read("head"), source.read("a"))


@given(
    sizes=st.lists(st.integers(0, 30), max_size=12),
    limit=st.integers(1, 40),
    tied=st.lists(st.integers(0, 11), max_size=3),
)
@pytest.mark.parity
def test_the_split_is_that_of_huggingface_hub(sizes: list[int], limit: int, tied: list[int]) -> None:
    hub = pytest.importorskip("huggingface_hub.serialization")
    int8 = format_dtype("I8")
    contents = Contents(
        {f"t{i}": Declared(int8, np.dtype(np.int8), (size,), False) for i, size in enumerate(sizes)},
        {f"alias{i}": f"t{i}" for i in tied if i < len(sizes)},
    )
    state = {name: (declared.nbytes, name) for name, declared in contents.tensors.items()}
    state |= {alias: state[name] for alias, name in contents.aliases.items()}
    theirs = hub.split_state_dict_into_shards_factory(
        state,
        get_storage_size=lambda tensor: tensor[0],
        get_storage_id=lambda tensor: tensor[1],
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    )
    ours = split_into_shards(contents, limit)
    found = {file: {*part.tensors, *part.aliases} for file, part in ours.items()}
    expected = {file: set(names) for file, names in theirs.filename_to_tensors.items()}
    assert found == (expected if sizes else {"model.safetensors": set()})
    total = sum(tensor.nbytes for part in ours.values() for tensor in part.tensors.values())
    assert theirs.metadata == {"total_size": total}


def test_the_package_reads_every_shard_bit_for_bit(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tensors = {f"t{i}": generator.integers(0, 256, 4 * i, np.uint8).view(np.float32) for i in range(9)}
    weight_map = write_all(tmp_path, 40, tensors)
    assert len(set(weight_map.values())) > 3
    for name, file in weight_map.items():
        assert load_file(tmp_path / file)[name].tobytes() == tensors[name].tobytes()


def test_at_most_two_files_are_open_at_a_time(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("needs /proc")
    before = len(list(descriptors.iterdir()))
    with ShardedWriter(tmp_path, 10) as writer:
        for i in range(50):
            writer.declare(f"t{i}", np.int8, (20 if i % 2 else 5,))
        writer.begin()
        for i in range(50):
            writer.write(f"t{i}", np.zeros(20 if i % 2 else 5, np.int8))
            assert len(list(descriptors.iterdir())) - before <= 4, "two files and their locks"
    assert len(names_in(tmp_path)) == 38 + 1


@pytest.mark.parametrize("name", ["model.safetensors", INDEX, "other.safetensors", "adapter.safetensors.index.json"])
def test_a_folder_with_weights_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"old")
    (tmp_path / "config.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=f"expected a folder without weights, got .*{name}"):
        ShardedWriter(tmp_path, 10)
    assert (tmp_path / name).read_bytes() == b"old"
    with pytest.raises(CheckpointError, match="could not be listed"):
        ShardedWriter(tmp_path / "missing", 10)


def test_whatever_ends_the_writing_takes_the_shards_along(tmp_path: Path) -> None:
    tensors = bytes_of({"a": 6, "b": 6, "c": 6})
    for last in ("", "a", "b"):
        with pytest.raises(CheckpointError, match="expected data before close"), ShardedWriter(tmp_path, 10) as writer:
            for name, array in tensors.items():
                writer.declare(name, array.dtype, array.shape)
            writer.begin()
            for name in "abc"[: "abc".find(last) + 1] if last else "":
                writer.write(name, tensors[name])
        assert names_in(tmp_path) == []
    with pytest.raises(LifecycleError, match="close before begin"):
        ShardedWriter(tmp_path, 10).close()


def test_a_failing_index_takes_the_shards_along(tmp_path: Path) -> None:
    with faults(-1, None) as plan:
        write_all(tmp_path, 10, bytes_of({"a": 6, "b": 6}))
    written = [position for position, (name, _) in enumerate(plan.log) if name == "write"]
    for file in list(tmp_path.iterdir()):
        file.unlink()
    with faults(written[-1], 28) as plan, pytest.raises(CheckpointError, match=f"{INDEX}: could not be written"):
        write_all(tmp_path, 10, bytes_of({"a": 6, "b": 6}))
    assert plan.fired == "write"
    assert names_in(tmp_path) == []


def test_what_is_done_stays_done(tmp_path: Path) -> None:
    for folder, limit in ((tmp_path / "one", 100), (tmp_path / "two", 10)):
        folder.mkdir()
        writer = ShardedWriter(folder, limit, named=Path("final"))
        assert writer.path == Path("final")
        for name in "ab":
            writer.declare(name, np.int8, (6,))
        writer.begin()
        for name in "ab":
            writer.write(name, np.zeros(6, np.int8))
        writer.close()
        writer.close()
        writer.abort()
        with open_tensors(folder) as source:
            assert set(source.tensors) == {"a", "b"}


def test_errors_name_the_folder_as_it_will_be_called(tmp_path: Path) -> None:
    with (
        pytest.raises(
            CheckpointError, match=r"^final.model-00002-of-00002.safetensors: a header of|^final.model-00002"
        ),
        ShardedWriter(tmp_path, 10, named=Path("final")) as writer,
    ):
        writer.declare("a", np.int8, (6,))
        writer.declare("b", np.int8, (6, *([1] * 64)))
        writer.begin()
    assert names_in(tmp_path) == []
    with (
        pytest.raises(CheckpointError, match=r"^final.model-00001-of-00002.safetensors: expected a header of at most"),
        ShardedWriter(tmp_path, 10, 100, named=Path("final")) as writer,
    ):
        writer.declare("n" * 100, np.int8, (6,))
        writer.declare("b", np.int8, (6,))
        writer.begin()
    assert names_in(tmp_path) == []


PEAK = """
import resource, sys
import numpy as np
from mila.serialization import ShardedWriter
array = np.ones((25_000_000,), np.float32)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
with ShardedWriter(sys.argv[1], "60MB") as writer:
    for name in "abc":
        writer.declare(name, "BF16", array.shape, convert=True)
    writer.begin()
    for name in "abc":
        writer.write(name, array)
print(peak() - before)
"""


def test_a_converted_export_needs_no_more_memory_than_tiles(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    command = [sys.executable, "-W", "error", "-c", PEAK, str(tmp_path)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64_000, "KiB; the tensors have 97,656"
    assert len(names_in(tmp_path)) == 4


# sizes

SIZES = {
    "5GB": 5 * 10**9, "5 gb": 5 * 10**9, " 512MiB ": 512 * 2**20, "1.5KB": 1500, "0.3kB": 300, "1KiB": 1024,
    "2TB": 2 * 10**12, "1TiB": 2**40, "1GiB": 2**30, "7B": 7, "200 b": 200, "3MB": 3 * 10**6, "1.0005KB": 1000,
}  # fmt: skip


@pytest.mark.parametrize("text, expected", SIZES.items())
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_size(text) == expected
    assert parse_size(expected) == expected


@pytest.mark.parametrize("text", [
    "", "5", "GB", "-1GB", "1e3GB", "5 G", "5GBs", ".5GB", "5.GB", "1,5GB", "nanGB", "5iB", "\u0665GB", None, 1.5, True,
    b"5GB",
])  # fmt: skip
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a size such as '5GB'"):
        parse_size(text)


@pytest.mark.parametrize("text", [0, -1, "0B", "0.5B", "0GB"])
def test_a_size_of_nothing_is_refused(text: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected a size of at least one byte"):
        ShardedWriter(tmp_path, text)
