"""Floats become other floats where that was asked for, a tile at a time; nothing else ever becomes a float."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.errors import CheckpointError, LifecycleError
from mila.serialization import SafetensorsFile, SafetensorsWriter, ShardedWriter, TensorWriter, open_tensors
from mila.serialization.conversion import FLOATS, TILE_BYTES, byte_tiles
from tests.serialization.folders import names_in

Array = np.ndarray[Any, np.dtype[Any]]
MAKERS: list[Callable[[Path], TensorWriter]] = [
    lambda folder: SafetensorsWriter(folder / "model.safetensors"),
    lambda folder: ShardedWriter(folder, "1GB"),
]
BOTH = pytest.mark.parametrize("make", MAKERS, ids=["one file", "shards"])
KINDS = sorted(FLOATS, key=str)


def write_one(writer: TensorWriter, dtype: object, array: Array) -> None:
    with writer:
        writer.declare("a", dtype, array.shape, convert=True)  # type: ignore[arg-type]
        writer.begin()
        writer.write("a", array)


@BOTH
@pytest.mark.parametrize("source", KINDS, ids=str)
@pytest.mark.parametrize("target", KINDS, ids=str)
def test_every_float_becomes_every_other(
    tmp_path: Path, make: Callable[[Path], TensorWriter], source: np.dtype[Any], target: np.dtype[Any]
) -> None:
    values = np.random.default_rng(0).standard_normal((5, 7)) * 100
    array = np.concatenate([values, [[np.nan, np.inf, -np.inf, 0.0, -0.0, 60000, 2.0**-14]]]).astype(source)
    write_one(make(tmp_path), target, array.T)
    with open_tensors(tmp_path) as file:
        written = file.read("a")
    assert written.dtype == target
    assert written.tobytes() == np.ascontiguousarray(array.T.astype(target)).tobytes()


@BOTH
@pytest.mark.parametrize("value, source, target", [
    (1e300, np.float64, np.float32), (-1e39, np.float64, ml_dtypes.bfloat16), (1e5, np.float32, np.float16),
    (3.4028235e38, np.float32, ml_dtypes.bfloat16), (-65536, ml_dtypes.bfloat16, np.float16),
])  # fmt: skip
def test_a_finite_value_never_becomes_infinite(
    tmp_path: Path, make: Callable[[Path], TensorWriter], value: float, source: type, target: type
) -> None:
    array: Array = np.ones(TILE_BYTES // np.dtype(source).itemsize + 5, source)
    array[-1] = np.inf
    array[-2] = value
    message = f"tensor 'a': expected values within the range of {np.dtype(target)}, got a finite value of .* beyond it"
    with pytest.raises(CheckpointError, match=message):
        write_one(make(tmp_path), target, array)
    assert names_in(tmp_path) == []


@BOTH
@pytest.mark.parametrize("source, target", [
    (np.int32, np.float32), (np.bool_, np.float32), (ml_dtypes.float8_e4m3fn, np.float32), (np.uint16, "BF16"),
    (np.float32, np.int8), (np.float32, np.bool_), (np.float32, "F8_E5M2"), (np.int8, np.int32),
    (np.float32, np.complex64), (np.complex64, np.float32),
])  # fmt: skip
def test_nothing_but_floats_is_converted(
    tmp_path: Path, make: Callable[[Path], TensorWriter], source: type, target: object
) -> None:
    with pytest.raises(CheckpointError, match=r"tensor 'a': expected dtype .*, got .*, which is never converted to it"):
        write_one(make(tmp_path), target, np.ones(3, source))
    assert names_in(tmp_path) == []


def test_without_consent_no_float_is_converted(tmp_path: Path) -> None:
    with SafetensorsWriter(tmp_path / "a") as writer:
        writer.declare("a", np.float32, (1,))
        writer.begin()
        with pytest.raises(CheckpointError, match=r"tensor 'a': expected dtype float32, got float64$"):
            writer.write("a", np.ones(1))
        writer.write("a", np.ones(1, np.float32))


@pytest.mark.parametrize("target", ["F64", "BF16"])
@pytest.mark.parametrize("layout", [lambda array: array, lambda array: array.T, lambda array: array.astype(">f4")])
def test_converting_holds_no_more_than_a_tile_and_its_parts(
    tmp_path: Path, target: str, layout: Callable[[Array], Array]
) -> None:
    array = layout(np.ones((4000, 5000), np.float32))
    tracemalloc.start()
    try:
        write_one(SafetensorsWriter(tmp_path / "a"), target, array)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.nbytes == 80_000_000
    assert peak < 3 * TILE_BYTES


def test_tiles_say_where_a_value_was_too_large() -> None:
    array = np.ones(TILE_BYTES // 4 * 2, np.float32)
    array[-1] = 1e5
    tiles = [(content.size, overflowed) for content, overflowed in byte_tiles(array, np.dtype("<f2"))]
    assert tiles == [(TILE_BYTES // 2, False), (TILE_BYTES // 2, True)]


# rows


@BOTH
def test_a_tensor_may_come_some_rows_at_a_time(tmp_path: Path, make: Callable[[Path], TensorWriter]) -> None:
    array = np.arange(24, dtype=np.float64).reshape(6, 4)

    def blocks() -> Iterator[Array]:
        yield array[:1]
        yield array[1:1]
        yield array[1:4].astype(np.float16)
        yield np.asfortranarray(array[4:]).astype(">f4")

    with make(tmp_path) as writer:
        writer.declare("a", np.float32, array.shape, convert=True)
        writer.declare("empty", np.float32, (0, 3))
        writer.begin()
        writer.write_rows("a", blocks())
        writer.write_rows("empty", [])
    with open_tensors(tmp_path) as file:
        assert np.array_equal(file.read("a"), array)
        assert file.read("empty").shape == (0, 3)


WRONG_ROWS: dict[str, tuple[list[Array], str]] = {
    "too few": ([np.ones((2, 2), np.float32)], "expected 3 rows, got 2"),
    "too many": ([np.ones((4, 2), np.float32)], "expected 3 rows, got more"),
    "too many at the end": ([np.ones((3, 2), np.float32), np.ones((1, 2), np.float32)], "expected 3 rows, got more"),
    "none": ([], "expected 3 rows, got 0"),
    "of another length": ([np.ones((3, 1), np.float32)], r"expected rows of shape \[2\], got a block of \[3, 1\]"),
    "without axes": ([np.ones((), np.float32)], r"expected rows of shape \[2\], got a block of \[\]"),
    "of another dtype": ([np.ones((3, 2), np.int32)], "expected dtype float32, got int32"),
}


@BOTH
@pytest.mark.parametrize("blocks, message", WRONG_ROWS.values(), ids=WRONG_ROWS.keys())
def test_wrong_rows_are_refused(
    tmp_path: Path, make: Callable[[Path], TensorWriter], blocks: list[Array], message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"tensor 'a': {message}"), make(tmp_path) as writer:
        writer.declare("a", np.float32, (3, 2))
        writer.begin()
        writer.write_rows("a", blocks)
    assert names_in(tmp_path) == []


@BOTH
def test_a_refused_tensor_can_be_written_once_more(tmp_path: Path, make: Callable[[Path], TensorWriter]) -> None:
    with make(tmp_path) as writer:
        writer.declare("scalar", np.float32, ())
        writer.declare("a", np.float32, (2,))
        writer.begin()
        with pytest.raises(CheckpointError, match="expected a tensor with rows"):
            writer.write_rows("scalar", [np.ones((1,), np.float32)])
        writer.write("scalar", np.full((), 5, np.float32))
        with pytest.raises(CheckpointError, match="expected 2 rows"):
            writer.write_rows("a", [np.full(1, 7, np.float32)])
        with pytest.raises(LifecycleError, match="expected 'a' next"):
            writer.write_rows("b", [])
        writer.write("a", np.array([1, 2], np.float32))
    with open_tensors(tmp_path) as file:
        assert file.read("a").tolist() == [1, 2]
        assert file.read("scalar") == 5


def test_a_converted_file_is_read_by_its_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_one(SafetensorsWriter(path), ml_dtypes.bfloat16, np.array([1.5, 2.5]))
    with SafetensorsFile(path) as file:
        assert file.entry("a").dtype_name == "BF16"
        assert file.read("a").astype(np.float32).tolist() == [1.5, 2.5]
