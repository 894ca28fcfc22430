"""The `safetensors` package reads what is written here, and the other way round, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize, safe_open
from safetensors.numpy import load_file, save_file

from mila.serialization import FORMAT_DTYPES, SafetensorsFile, save_tensors
from tests.serialization.safetensors_bytes import entry, file_bytes

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_DTYPES = {name: each.numpy_dtype for name, each in FORMAT_DTYPES.items() if each.numpy_dtype is not None}
LOADED_BY_THE_PACKAGE_THROUGH_NUMPY = [
    "F64", "F32", "F16", "I64", "U64", "I32", "U32", "I16", "U16", "I8", "U8", "BOOL", "C64", "BF16",
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (1, 1, 2, 1, 3)]


def parse_by_the_package(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    parsed: list[tuple[str, dict[str, Any]]] = deserialize(content)  # type: ignore[no-untyped-call]
    return parsed


def random_bits(name: str, shape: tuple[int, ...]) -> Array:
    """Return an array of every kind of bit pattern, NaN and infinities of all payloads among them."""
    generator = np.random.default_rng([len(name), *shape])
    dtype = NUMPY_DTYPES[name]
    count = int(np.prod(shape))
    if name == "BOOL":
        return generator.integers(0, 2, shape).astype(np.bool_)
    return generator.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def tensors(names: list[str]) -> dict[str, Array]:
    return {f"{name}{shape}": random_bits(name, shape) for name in names for shape in SHAPES}


def test_every_dtype_of_the_package_is_known() -> None:
    with pytest.raises(Exception, match="unknown variant `NONE`") as refused:
        parse_by_the_package(file_bytes({"a": entry("NONE", [0], 0, 0)}))
    listed = set(str(refused.value).split("expected one of ")[1].split(" at line")[0].replace("`", "").split(", "))
    assert listed == set(FORMAT_DTYPES)


def test_bits_per_element_are_those_of_the_package() -> None:
    for name, each in FORMAT_DTYPES.items():
        parse_by_the_package(file_bytes({"a": entry(name, [8], 0, each.bits)}, bytes(each.bits)))


def test_the_package_loads_what_is_written_here(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written = tensors(LOADED_BY_THE_PACKAGE_THROUGH_NUMPY)
    save_tensors(path, written, {"k": "é", "format": "np"})
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"k": "é", "format": "np"}
    loaded = load_file(path)
    assert set(loaded) == set(written)
    for name, array in written.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert bits(loaded[name]) == bits(array)


def test_the_package_accepts_every_dtype_written_here(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written = tensors(list(NUMPY_DTYPES))
    save_tensors(path, written)
    for name, record in parse_by_the_package(path.read_bytes()):
        assert tuple(record["shape"]) == written[name].shape
        assert bytes(record["data"]) == bits(written[name])


def test_what_the_package_writes_is_read_here(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written = tensors(list(NUMPY_DTYPES))
    save_file(written, path, metadata={"k": "é"})
    with SafetensorsFile(path) as file:
        assert dict(file.metadata) == {"k": "é"}
        assert set(file.tensors) == set(written)
        for name, array in written.items():
            target = np.zeros_like(array)
            file.copy_into(name, target)
            for read in (file.read(name), target):
                assert read.dtype == array.dtype
                assert read.shape == array.shape
                assert bits(read) == bits(array)


def test_every_dtype_round_trips_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written = tensors(list(NUMPY_DTYPES))
    save_tensors(path, written)
    with SafetensorsFile(path) as file:
        assert set(file.tensors) == set(written)
        for name, array in written.items():
            assert file.read(name).dtype == array.dtype
            assert file.read(name).shape == array.shape
            assert bits(file.read(name)) == bits(array)


@pytest.mark.parametrize("name", ["F16", "F32", "F64", "BF16", "F8_E4M3", "F8_E5M2"])
def test_special_values_keep_their_bits(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    dtype = NUMPY_DTYPES[name]
    unsigned = np.dtype(f"u{dtype.itemsize}")
    count = min(2 ** (8 * dtype.itemsize), 65536)
    patterns = np.arange(count, dtype=np.uint64)
    if dtype.itemsize > 2:
        patterns = patterns << np.uint64(8 * dtype.itemsize - 16) | np.uint64(1)
    array = patterns.astype(unsigned).view(dtype)
    save_tensors(path, {"a": array})
    with SafetensorsFile(path) as file:
        assert np.array_equal(file.read("a").view(unsigned), array.view(unsigned))
