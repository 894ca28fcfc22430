"""Files that look odd and are right are read, and read right."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mila.serialization import FORMAT_DTYPES, SafetensorsFile, save_tensors
from tests.serialization.safetensors_bytes import entry, file_bytes


def open_bytes(tmp_path: Path, content: bytes) -> SafetensorsFile:
    path = tmp_path / "good.safetensors"
    path.write_bytes(content)
    return SafetensorsFile(path)


@pytest.mark.parametrize("header", ["{}", "{}      ", "  {}", "\n\t{ }\r\n", '{"__metadata__":{}}'])
def test_a_file_without_tensors(tmp_path: Path, header: str) -> None:
    with open_bytes(tmp_path, file_bytes(header)) as file:
        assert dict(file.tensors) == {}
        assert dict(file.metadata) == {}


def test_a_tensor_without_dimensions(tmp_path: Path) -> None:
    with open_bytes(tmp_path, file_bytes({"a": entry("F64", [], 0, 8)}, np.float64(1.5).tobytes())) as file:
        assert file.read("a").shape == ()
        assert file.read("a") == 1.5
        target = np.zeros((), np.float64)
        file.copy_into("a", target)
        assert target == 1.5


def test_empty_tensors_share_an_offset(tmp_path: Path) -> None:
    fields = {
        "b": entry("F32", [0, 3], 4, 4),
        "a": entry("F32", [1], 0, 4),
        "c": entry("BOOL", [2, 0], 4, 4),
        "d": entry("U8", [0, 2**62], 0, 0),
        "e": entry("F32", [1], 4, 8),
        "f": entry("F4", [0], 8, 8),
    }
    with open_bytes(tmp_path, file_bytes(fields, bytes(8))) as file:
        assert set(file.tensors) == set("abcdef")
        for name in "bcd":
            assert file.read(name).shape == file.entry(name).shape
            file.copy_into(
                name, np.empty(file.entry(name).shape, FORMAT_DTYPES[file.entry(name).dtype_name].numpy_dtype)
            )


def test_any_order_in_the_header_is_the_order_of_the_data_in_the_list(tmp_path: Path) -> None:
    fields = {"z": entry("U8", [1], 2, 3), "m": entry("U8", [1], 0, 1), "a": entry("U8", [1], 1, 2)}
    with open_bytes(tmp_path, file_bytes(fields, b"\7\10\11")) as file:
        assert list(file.tensors) == ["m", "a", "z"]
        assert [int(file.read(name)[0]) for name in file.tensors] == [7, 8, 9]


@pytest.mark.parametrize("padding", range(8))
def test_unaligned_data(tmp_path: Path, padding: int) -> None:
    values = np.array([1.0, np.nan, -np.inf, -0.0], np.float64)
    fields = {"a": entry("U8", [1], 0, 1), "b": entry("F64", [4], 1, 33)}
    content = file_bytes(str(fields).replace("'", '"') + padding * " ", b"\1" + values.tobytes())
    with open_bytes(tmp_path, content) as file:
        read = file.read("b")
        assert read.tobytes() == values.tobytes()
        assert read.flags.aligned
        assert not read.flags.writeable
        target = np.empty(4, np.float64)
        file.copy_into("b", target)
        assert target.tobytes() == values.tobytes()


def test_rank_64(tmp_path: Path) -> None:
    with open_bytes(tmp_path, file_bytes({"a": entry("U8", 64 * [1], 0, 1)}, b"\5")) as file:
        assert file.read("a").shape == 64 * (1,)


def test_escaped_and_foreign_names(tmp_path: Path) -> None:
    header = '{"\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"":{"shape":[0],"dtype":"U8",'
    header += '"data_offsets":[1,1]},"é/../":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}'
    with open_bytes(tmp_path, file_bytes(header, b"\5")) as file:
        assert set(file.tensors) == {"😀", "", "é/../"}


def test_aligned_data_is_read_in_place_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = np.arange(1_000_000, dtype=np.float32)
    save_tensors(path, {"a": array})
    with SafetensorsFile(path) as file:
        tracemalloc.start()
        try:
            view = file.read("a")
            target = np.empty(0, np.float32)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 20_000
        assert np.array_equal(view, array)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        file.drop_pages("a")
        assert np.array_equal(view, array)
        assert target.size == 0


def test_copies_allocate_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = np.arange(5_000_000, dtype=np.float32).reshape(2, -1)
    save_tensors(path, {"a": array})
    target, part = np.zeros_like(array), np.zeros(7, np.float32)
    with SafetensorsFile(path) as file:
        tracemalloc.start()
        try:
            file.copy_into("a", target)
            file.copy_range_into("a", 2_499_997, part)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 20_000
    assert np.array_equal(target, array)
    assert np.array_equal(part, array.reshape(-1)[2_499_997:2_500_004])


def test_several_threads_read_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {str(i): np.full(100_000, i, np.int32) for i in range(16)}
    save_tensors(path, arrays)
    targets = {name: np.empty_like(array) for name, array in arrays.items()}
    with SafetensorsFile(path) as file:
        threads = [threading.Thread(target=file.copy_into, args=item) for item in targets.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(np.array_equal(targets[name], array) for name, array in arrays.items())
