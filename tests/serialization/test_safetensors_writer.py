"""What is written is what was given, whatever its layout; the order of calls is held; nothing shows before the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mila.errors import CheckpointError, DTypeError, LifecycleError
from mila.serialization import SafetensorsFile, SafetensorsWriter, save_tensors
from mila.serialization.conversion import contiguous_tiles
from tests.serialization.folders import names_in

Array = np.ndarray[Any, np.dtype[Any]]


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def base() -> Array:
    return np.arange(24, dtype=np.float32).reshape(2, 3, 4)


LAYOUTS: dict[str, Callable[[], Array]] = {
    "contiguous": base,
    "Fortran order": lambda: np.asfortranarray(base()),
    "transposed": lambda: base().T,
    "axes moved": lambda: np.moveaxis(base(), 0, 1),
    "strided": lambda: base()[:, ::2, ::3],
    "reversed": lambda: base()[::-1, :, ::-1],
    "broadcast": lambda: np.broadcast_to(floats(1, 2, 3), (5, 3)),
    "broadcast scalar": lambda: np.broadcast_to(floats(7), (2, 0, 3)),
    "big-endian": lambda: base().astype(">f4"),
    "big-endian and transposed": lambda: base().astype(">f4").T,
    "field of records": lambda: np.array([(1, 2.5), (3, 4.5)], [("a", "i1"), ("b", "f4")])["b"],
    "read-only": lambda: np.frombuffer(base().tobytes(), np.float32),
    "without dimensions": lambda: floats(3).reshape(()),
    "empty": lambda: np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_comes_out_right(tmp_path: Path, make: Callable[[], Array]) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": make(), "after": floats(9)})
    with SafetensorsFile(path) as file:
        assert np.array_equal(file.read("a"), make())
        assert file.read("a").shape == make().shape
        assert file.read("after")[0] == 9


def test_arrays_larger_than_a_tile_come_out_right(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    wide = np.arange(6_000_000, dtype=np.float32).reshape(3, -1)
    save_tensors(path, {"reversed": wide[:, ::-1], "transposed": wide.T, "whole": wide})
    with SafetensorsFile(path) as file:
        assert np.array_equal(file.read("reversed"), wide[:, ::-1])
        assert np.array_equal(file.read("transposed"), wide.T)
        assert np.array_equal(file.read("whole"), wide)


def test_tiles_are_the_array_in_order_and_small() -> None:
    array = np.broadcast_to(np.arange(7, dtype=np.float64), (2, 1_500_000, 7))
    first = 0
    for tile in contiguous_tiles(array[:, ::-1]):
        assert tile.nbytes <= 1 << 24
        assert np.array_equal(tile.reshape(-1, 7)[0], np.arange(7))
        first += tile.size
    assert first == array.size


def write_two(writer: SafetensorsWriter) -> None:
    writer.declare("a", np.float32, (2,))
    writer.declare("b", "BF16", (1,))
    writer.begin()
    writer.write("a", floats(1, 2))
    writer.write("b", np.array([3], ml_dtypes.bfloat16))


def test_two_passes_make_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with SafetensorsWriter(path) as writer:
        write_two(writer)
        assert not path.exists()
    with SafetensorsFile(path) as file:
        assert file.read("b")[0] == 3
    assert names_in(tmp_path) == [path.name]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    save_tensors(one, {"a": base(), "b": base().astype(np.int8)}, {"k": "1", "é": "2"})
    save_tensors(other, {"a": np.asfortranarray(base()), "b": base().astype(np.int8)}, {"é": "2", "k": "1"})
    assert one.read_bytes() == other.read_bytes()


def test_the_header_is_padded_and_every_tensor_is_aligned(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {f"{dtype}{i}": np.zeros(i, dtype) for i in (1, 3, 5) for dtype in ("i1", "f8", "u2", "f4", "c8")}
    save_tensors(path, arrays)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert length % 8 == 0
    with SafetensorsFile(path) as file:
        for each in file.tensors.values():
            assert each.begin % arrays[each.name].dtype.alignment == 0


@pytest.mark.parametrize("count", range(9))
def test_padding_at_every_length(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"n" * (count + 1): np.full(1, count, np.float64)})
    content = path.read_bytes()
    assert len(content) % 8 == 0
    assert content[8 : len(content) - 8].rstrip(b" ").endswith(b"}")


def test_calls_out_of_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    writer = SafetensorsWriter(path)
    writer.declare("a", np.float32, (2,))
    writer.declare("b", np.float32, (2,))
    value = floats(1, 2)
    with pytest.raises(LifecycleError, match="write needs a writer that is writing"):
        writer.write("a", value)
    writer.begin()
    for call in (
        writer.begin,
        lambda: writer.declare("c", np.float32, (2,)),
        lambda: writer.declare_alias("c", "a"),
        lambda: writer.set_metadata("k", "v"),
        lambda: writer.write("b", value),
        lambda: writer.write("c", value),
    ):
        with pytest.raises(LifecycleError):
            call()
    writer.write("a", value)
    with pytest.raises(LifecycleError, match="expected 'b' next, got 'a'"):
        writer.write("a", value)
    writer.write("b", value)
    with pytest.raises(LifecycleError, match="expected no more tensors next"):
        writer.write("b", value)
    writer.close()
    writer.close()
    with pytest.raises(LifecycleError):
        writer.write("b", value)
    with SafetensorsFile(path) as file:
        assert list(file.tensors) == ["a", "b"]


def test_closing_names_the_first_missing_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    writer = SafetensorsWriter(path)
    for name in "abc":
        writer.declare(name, np.float32, (1,))
    writer.begin()
    writer.write("a", floats(1))
    with pytest.raises(CheckpointError, match="tensor 'b': expected data before close, got none of 2 tensors"):
        writer.close()
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == [path.name]


def test_closing_before_begin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LifecycleError, match="close before begin"), SafetensorsWriter(tmp_path / "a"):
        pass
    assert names_in(tmp_path) == []


def test_declarations_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with SafetensorsWriter(tmp_path / "a.safetensors") as writer:
        writer.declare("a", np.float32, (2,))
        refused: list[tuple[type[Exception], Callable[[], None]]] = [
            (CheckpointError, lambda: writer.declare("a", np.float32, (2,))),
            (CheckpointError, lambda: writer.declare("__metadata__", np.float32, (2,))),
            (CheckpointError, lambda: writer.declare("b", np.float32, (-1,))),
            (CheckpointError, lambda: writer.declare("b", np.float32, (1.5,))),  # type: ignore[arg-type]
            (CheckpointError, lambda: writer.declare("b", "F4", (2,))),
            (DTypeError, lambda: writer.declare("b", np.complex128, (2,))),
            (DTypeError, lambda: writer.declare("b", object, (2,))),
            (DTypeError, lambda: writer.declare("b", "no dtype", (2,))),
            (DTypeError, lambda: writer.declare("b", ml_dtypes.float4_e2m1fn, (2,))),
            (CheckpointError, lambda: writer.declare_alias("a", "a")),
            (CheckpointError, lambda: writer.declare_alias("b", "c")),
            (CheckpointError, lambda: writer.set_metadata("mila.aliases", "{}")),
            (CheckpointError, lambda: writer.set_metadata("k", 1)),  # type: ignore[arg-type]
        ]
        for kind, call in refused:
            with pytest.raises(kind):
                call()
        writer.begin()
        for array in (np.zeros(2), np.zeros(2, np.int32), np.zeros(3, np.float32), np.zeros((2, 1), np.float32)):
            with pytest.raises(CheckpointError, match="tensor 'a': expected"):
                writer.write("a", array)
        writer.write("a", floats(1, 2))


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_names_that_are_no_text_are_refused(tmp_path: Path, name: str) -> None:
    for tensors, metadata in (({name: base()}, {}), ({}, {name: "v"}), ({}, {"k": name})):
        with pytest.raises(CheckpointError, match="Unicode text"):
            save_tensors(tmp_path / "a", tensors, metadata)
    assert names_in(tmp_path) == []


def test_a_header_that_readers_refuse_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with (
        pytest.raises(CheckpointError, match="a header of at most 1000 bytes"),
        SafetensorsWriter(path, 1000) as writer,
    ):
        writer.set_metadata("k", "v" * 1000)
        writer.begin()
    with pytest.raises(CheckpointError, match="a rank of at most 64"), SafetensorsWriter(path) as writer:
        writer.declare("a", np.float32, 65 * (1,))
        writer.begin()
    with pytest.raises(CheckpointError, match="a size below"), SafetensorsWriter(path) as writer:
        writer.declare("a", np.float32, (2**31, 2**31))
        writer.begin()
    assert names_in(tmp_path) == []


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": base()})
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), SafetensorsWriter(path) as writer:
        write_two(writer)
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert names_in(tmp_path) == [path.name]


def test_saving_over_a_file_that_is_mapped_corrupts_neither(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = np.arange(1_000_000, dtype=np.float32)
    save_tensors(path, {"a": array})
    with SafetensorsFile(path) as file:
        view = file.read("a")
        save_tensors(path, {"a": view, "reversed": view[::-1]})
        assert np.array_equal(view, array)
    with SafetensorsFile(path) as file:
        assert np.array_equal(file.read("a"), array)
        assert np.array_equal(file.read("reversed"), array[::-1])


# tied tensors


def test_tied_tensors_are_stored_once_and_load_by_both_names(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    table = base()
    save_tensors(path, {"wte": table, "head": table[:], "equal": table.copy(), "part": table[:1]})
    with SafetensorsFile(path) as file:
        assert set(file.tensors) == {"wte", "equal", "part"}
        assert dict(file.aliases) == {"head": "wte"}
        assert json.loads(file.metadata["mila.aliases"]) == {"head": "wte"}
        assert file.entry("head") == file.entry("wte")
        target = np.empty_like(table)
        file.copy_into("head", target)
        for loaded in (file.read("head"), file.read("wte"), target):
            assert np.array_equal(loaded, table)


def test_views_of_one_memory_that_differ_are_not_tied(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    tensors = {"a": square, "t": square.T, "i": square.view(np.int32), "f": square.reshape(-1), "e": square[:0]}
    save_tensors(path, {**tensors, "e2": square[:0]})
    with SafetensorsFile(path) as file:
        assert dict(file.aliases) == {}
        for name, array in tensors.items():
            assert np.array_equal(file.read(name), array)


@settings(max_examples=200)
@given(
    shape=st.lists(st.integers(0, 4), max_size=5),
    data=st.data(),
    dtype=st.sampled_from(["?", "i1", "u2", "f2", ">i4", "f4", "c8", ">u8", "f8"]),
)
def test_any_view_round_trips(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], data: st.DataObject, dtype: str
) -> None:
    count = int(np.prod(shape))
    array: Array = (np.arange(count) % 2 if dtype == "?" else np.arange(count)).astype(dtype).reshape(shape)
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1, -3]))) for _ in shape)
    view = array[steps].transpose(data.draw(st.permutations(range(len(shape)))))
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save_tensors(path, {"a": view})
    with SafetensorsFile(path) as file:
        assert file.read("a").shape == view.shape
        assert np.array_equal(file.read("a"), view)
