"""Every malformed file is refused with one `CheckpointError` that names the file and what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mila.errors import CheckpointError, LifecycleError
from mila.serialization import SafetensorsFile, save_tensors
from tests.serialization.safetensors_bytes import entry, entry_text, file_bytes

FOUR = bytes(4)
A = entry("F32", [1], 0, 4)
REJECTED: dict[str, tuple[bytes, str]] = {
    # 1: shorter than 8 bytes
    "empty file": (b"", "at least 8 bytes, got 0"),
    "seven bytes": (b"\x02\0\0\0\0\0\0", "at least 8 bytes, got 7"),
    # 2: header length
    "length above the cap": (file_bytes("{}", length=100_000_001), "at most 100000000 bytes, got 100000001"),
    "length of 2**64 - 1": (b"\xff" * 8 + b"{}", "at most 100000000 bytes, got 18446744073709551615"),
    "length one above the file": (file_bytes("{}", length=3), "within the file's 2 bytes, got 3"),
    "length that leaves no room": (b"\x01\0\0\0\0\0\0\0", "within the file's 0 bytes, got 1"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        "a safetensors file, got a Git LFS",
    ),
    "HTML page": (
        b"<!DOCTYPE html><html><body>404</body></html>",
        "a safetensors file, got HTML or XML instead of the file: incomplete download",
    ),
    "HTML page after white space": (b"\r\n  <html>", "incomplete download"),
    "JSON error page": (b'{"error":"Repository not found"}', "incomplete download"),
    "PyTorch file": (b"PK\x03\x04" + bytes(64), "a zip archive"),
    "GGUF file": (b"GGUF\x03\0\0\0" + bytes(64), "a GGUF file"),
    # 4: not UTF-8
    "invalid UTF-8": (file_bytes(b'{"\xff":{}}'), "in UTF-8, got byte 0xff at 2"),
    "overlong UTF-8": (file_bytes(b'{"\xc0\xaf":{}}'), "in UTF-8"),
    "UTF-8 surrogate": (file_bytes(b'{"\xed\xa0\x80":{}}'), "in UTF-8"),
    "UTF-16": (file_bytes('{"a":{}}'.encode("utf-16-le")), "NUL byte"),
    # 5: first byte, padding
    "no header": (file_bytes(""), "starts with '{', got nothing"),
    "byte order mark": (file_bytes(b"\xef\xbb\xbf{}"), "starts with '{'"),
    "leading NUL": (file_bytes(b"\0{}"), "starts with '{'"),
    "NUL padding": (file_bytes(b"{}\0\0"), "padded with spaces, got a NUL byte at 2"),
    "leading form feed": (file_bytes(b"\f{}"), "starts with '{'"),
    # 6: JSON
    "array": (file_bytes("[]"), "starts with '{'"),
    "text": (file_bytes('"a"'), "starts with '{'"),
    "truncated JSON": (file_bytes('{"a":'), "valid JSON"),
    "two objects": (file_bytes("{}{}"), "valid JSON"),
    "trailing comma": (file_bytes('{"a":1,}'), "valid JSON"),
    "control character in a string": (file_bytes('{"a\n":1}'), "valid JSON"),
    "NaN": (file_bytes('{"a":NaN}'), "strict JSON, got NaN"),
    "Infinity": (file_bytes('{"a":Infinity}'), "strict JSON, got Infinity"),
    "minus Infinity": (file_bytes('{"a":-Infinity}'), "strict JSON, got -Infinity"),
    "integer of 21 digits": (file_bytes('{"a":' + 21 * "9" + "}"), "an integer of 21 digits"),
    "integer of 100,000 digits": (file_bytes('{"a":' + 100_000 * "9" + "}"), "an integer of 100000 digits"),
    "arrays nested too deep": (file_bytes('{"a":' + 100_000 * "["), "nesting too deep"),
    "objects nested too deep": (file_bytes(100_000 * '{"a":'), "nesting too deep"),
    "half a surrogate pair": (file_bytes('{"\\ud800":' + entry_text() + "}", FOUR), "half a surrogate pair"),
    "half a surrogate pair in metadata": (file_bytes('{"__metadata__":{"a":"\\udfff"}}'), "half a surrogate pair"),
    # 7: duplicates
    "tensor twice": (file_bytes(f'{{"a":{entry_text()},"a":{entry_text()}}}', FOUR), "the key 'a' twice"),
    "tensor twice, escaped": (file_bytes(f'{{"a":{entry_text()},"\\u0061":{entry_text()}}}', FOUR), "'a' twice"),
    "field twice": (
        file_bytes('{"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}', FOUR),
        "the key 'dtype' twice",
    ),
    "metadata key twice": (file_bytes('{"__metadata__":{"k":"1","k":"2"}}'), "the key 'k' twice"),
    "metadata twice": (file_bytes('{"__metadata__":{},"__metadata__":{}}'), "the key '__metadata__' twice"),
    # 8: metadata
    "metadata that is text": (file_bytes({"__metadata__": "a"}), "maps strings to strings, got 'a'"),
    "metadata that is null": (file_bytes({"__metadata__": None}), "maps strings to strings, got None"),
    "metadata of numbers": (file_bytes({"__metadata__": {"a": 1}}), "maps strings to strings, got 1 for 'a'"),
    "metadata of objects": (file_bytes({"__metadata__": {"a": {}}}), "maps strings to strings"),
    # 9: fields
    "entry that is null": (file_bytes({"a": None}), "tensor 'a': expected an object, got None"),
    "entry that is a list": (file_bytes({"a": []}), "tensor 'a': expected an object"),
    "no dtype": (file_bytes({"a": {"shape": [1], "data_offsets": [0, 4]}}, FOUR), "the fields dtype, shape"),
    "no shape": (file_bytes({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, FOUR), "the fields dtype, shape"),
    "no offsets": (file_bytes({"a": {"dtype": "F32", "shape": [1]}}, FOUR), "the fields dtype, shape"),
    "additional field": (file_bytes({"a": {**A, "strides": [1]}}, FOUR), "'strides'"),
    # 10: dtypes
    "unknown dtype": (file_bytes({"a": entry("F128", [0], 0, 0)}), "a known dtype, got 'F128'"),
    "lower-case dtype": (file_bytes({"a": entry("f32", [1], 0, 4)}, FOUR), "a known dtype, got 'f32'"),
    "dtype that is a number": (file_bytes({"a": entry(32, [1], 0, 4)}, FOUR), "a known dtype, got 32"),
    "dtype that is a list": (file_bytes({"a": entry(["F32"], [1], 0, 4)}, FOUR), "a known dtype"),
    # 11: shapes
    "shape that is a number": (file_bytes({"a": entry("F32", 1, 0, 4)}, FOUR), "non-negative integers, got 1"),
    "shape that is text": (file_bytes({"a": entry("F32", "1", 0, 4)}, FOUR), "non-negative integers, got '1'"),
    "shape of truth values": (file_bytes({"a": entry("F32", [True], 0, 4)}, FOUR), "integers, got [True]"),
    "shape of a float": (file_bytes({"a": entry("F32", [1.0], 0, 4)}, FOUR), "integers, got [1.0]"),
    "negative extent": (file_bytes({"a": entry("F32", [-1], 0, 4)}, FOUR), "integers, got [-1]"),
    "negative zero": (file_bytes('{"a":' + entry_text(shape="[-0]", offsets="[0,0]") + "}"), "integers, got [-0.0]"),
    "nested shape": (file_bytes({"a": entry("F32", [[1]], 0, 4)}, FOUR), "non-negative integers"),
    "deeply nested shape": (
        file_bytes('{"a":' + entry_text(shape=500 * "[" + 500 * "]") + "}", FOUR),
        "non-negative integers",
    ),
    "rank 65": (file_bytes({"a": entry("F32", 65 * [1], 0, 4)}, FOUR), "at most 64, got 65"),
    # 12: sizes
    "2**63 elements": (file_bytes({"a": entry("U8", [2**63], 0, 4)}, FOUR), "a size below 2**63"),
    "product that wraps to 4 bytes": (
        file_bytes({"a": entry("U8", [2**32, 2**32 + 1, 4], 0, 4)}, FOUR),
        "a size below 2**63",
    ),
    "overflow beside an extent of 0": (file_bytes({"a": entry("U8", [0, 2**40, 2**40], 0, 0)}), "a size below 2**63"),
    "more than the file": (file_bytes({"a": entry("F32", [2**40], 0, 4)}, FOUR), "that fits the 4 bytes of data"),
    # 13: bits
    "three elements of 4 bits": (file_bytes({"a": entry("F4", [3], 0, 2)}, bytes(2)), "whole number of bytes"),
    "two elements of 6 bits": (file_bytes({"a": entry("F6_E2M3", [2], 0, 2)}, bytes(2)), "whole number of bytes"),
    # 14: offsets
    "one offset": (file_bytes('{"a":' + entry_text(offsets="[4]") + "}", FOUR), "two non-negative integers, got [4]"),
    "three offsets": (file_bytes('{"a":' + entry_text(offsets="[0,4,4]") + "}", FOUR), "two non-negative integers"),
    "offsets of truth values": (file_bytes({"a": entry("U8", [1], False, True)}, b"\0"), "two non-negative integers"),
    "offsets of floats": (file_bytes({"a": entry("F32", [1], 0, 4.0)}, FOUR), "two non-negative integers"),
    "negative offset": (file_bytes({"a": entry("F32", [1], -4, 0)}, FOUR), "two non-negative integers"),
    "offsets that are null": (
        file_bytes('{"a":' + entry_text(offsets="null") + "}", FOUR),
        "two non-negative integers",
    ),
    "begin after end": (file_bytes({"a": entry("F32", [1], 4, 0)}, FOUR), "in order and within 4 bytes"),
    "end after the data": (file_bytes({"a": entry("F32", [1], 4, 8)}, FOUR), "in order and within 4 bytes"),
    "offset of 2**64 - 1": (file_bytes({"a": entry("F32", [1], 0, 2**64 - 1)}, FOUR), "in order and within 4 bytes"),
    # 15: size and offsets
    "too few bytes": (file_bytes({"a": entry("F32", [2], 0, 4)}, bytes(8)), "8 bytes for shape [2] of F32, got 4"),
    "too many bytes": (file_bytes({"a": entry("F32", [1], 0, 8)}, bytes(8)), "4 bytes for shape [1] of F32, got 8"),
    "bytes for an empty tensor": (file_bytes({"a": entry("F32", [0], 0, 4)}, FOUR), "0 bytes for shape [0]"),
    # 16: coverage
    "first not at 0": (file_bytes({"a": entry("F32", [1], 4, 8)}, bytes(8)), "a gap, at 4"),
    "gap": (file_bytes({"a": A, "b": entry("F32", [1], 8, 12)}, bytes(12)), "tensor 'b': expected data that begins"),
    "overlap": (file_bytes({"a": A, "b": entry("F32", [1], 2, 6)}, bytes(6)), "an overlap, at 2"),
    "two tensors at one place": (file_bytes({"a": A, "b": A}, FOUR), "an overlap, at 0"),
    "empty tensor inside another": (file_bytes({"a": A, "b": entry("F32", [0], 2, 2)}, FOUR), "an overlap, at 2"),
    "bytes after the last": (file_bytes({"a": A}, bytes(5)), "4 bytes of data, as the header says, got 5"),
    "bytes without a tensor": (file_bytes({}, b"PK"), "0 bytes of data, as the header says, got 2"),
    "truncated data": (file_bytes({"a": A}, bytes(3)), "that fits the 3 bytes of data"),
    # the aliases that Mila keeps in the metadata
    "aliases that are no JSON": (file_bytes({"__metadata__": {"mila.aliases": "a"}}), "list of aliases"),
    "alias of nothing": (file_bytes({"__metadata__": {"mila.aliases": '{"b":"a"}'}}), "an alias of a tensor"),
    "alias of a number": (file_bytes({"__metadata__": {"mila.aliases": '{"b":1}'}}), "an alias of a tensor"),
    "alias that is a tensor": (
        file_bytes({"__metadata__": {"mila.aliases": '{"a":"a"}'}, "a": A}, FOUR),
        "an alias that is no tensor itself",
    ),
}


@pytest.mark.parametrize("content, message", REJECTED.values(), ids=REJECTED.keys())
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        SafetensorsFile(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 800


ONE = f'{{"a":{entry_text()}}}'
TWO = f'{{"a":{entry_text()},"b":{entry_text(offsets="[4,8]")}}}'


@pytest.mark.parametrize(("header", "size"), [(ONE.ljust(60), 4), (TWO.ljust(640), 8)])
def test_wherever_a_download_was_cut_it_is_called_incomplete(tmp_path: Path, header: str, size: int) -> None:
    """Also where the header's length begins like a page (60 is ``<``) or like a pickle (640)."""
    path = tmp_path / "cut.safetensors"
    content = file_bytes(header, bytes(size))
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"is the download complete\?$"):
            SafetensorsFile(path)


def test_the_header_limit_is_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes("{}".ljust(64)))
    SafetensorsFile(path, header_limit=64).close()
    with pytest.raises(CheckpointError, match="at most 63 bytes, got 64"):
        SafetensorsFile(path, header_limit=63)


def test_a_name_as_long_as_the_file_does_not_fill_the_message(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes({"n" * 100_000: None}))
    with pytest.raises(CheckpointError) as refused:
        SafetensorsFile(path)
    assert len(str(refused.value)) < 1000


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", tmp_path / "nul\0", Path("/dev/null")):
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


# 3 and 17: the file changes under the reader


def save_one(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    array = np.arange(100_000, dtype=np.float32)
    save_tensors(path, {"a": array})
    return array


def truncate(path: Path) -> None:
    os.truncate(path, 1000)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def rewrite(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [truncate, lengthen, rewrite, replace, remove])
def test_a_file_that_changed_since_it_was_opened_is_refused(tmp_path: Path, change: object) -> None:
    path = tmp_path / "a.safetensors"
    save_one(path)
    target = np.empty(100_000, np.float32)
    with SafetensorsFile(path) as file:
        assert callable(change)
        change(path)
        for read in (
            lambda: file.read("a"),
            lambda: file.copy_into("a", target),
            lambda: file.copy_range_into("a", 0, target),
        ):
            with pytest.raises(CheckpointError, match="changed"):
                read()


def test_a_file_truncated_between_the_check_and_the_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    save_one(path)
    with SafetensorsFile(path) as file:
        monkeypatch.setattr(file, "_check_unchanged", lambda: truncate(path))
        with pytest.raises(CheckpointError, match="truncated since it was opened"):
            file.copy_into("a", np.empty(100_000, np.float32))


def test_a_closed_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = save_one(path)
    with SafetensorsFile(path) as file:
        view = file.read("a")
    assert np.array_equal(view, array)
    with pytest.raises(LifecycleError):
        file.read("a")
    with pytest.raises(LifecycleError):
        file.copy_into("a", np.empty(100_000, np.float32))


# asking for what is not there


def test_a_target_has_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.ones((2, 3), np.float32)})
    read_only = np.zeros((2, 3), np.float32)
    read_only.flags.writeable = False
    with SafetensorsFile(path) as file:
        for name, target, message in (
            ("b", np.zeros((2, 3), np.float32), "no such name"),
            ("a", np.zeros((3, 2), np.float32), r"expected shape \[3, 2\], got \[2, 3\]"),
            ("a", np.zeros(6, np.float32), "expected shape"),
            ("a", np.zeros((2, 3), np.float64), "expected dtype float64, got float32"),
            ("a", np.zeros((2, 3), np.int32), "expected dtype int32, got float32"),
            ("a", np.zeros((3, 2), np.float32).T, "contiguous"),
            ("a", read_only, "writable"),
        ):
            before = target.copy()
            with pytest.raises(CheckpointError, match=message):
                file.copy_into(name, target)
            assert np.array_equal(target, before)
        for first, count in ((-1, 1), (0, 7), (6, 1), (7, 0)):
            with pytest.raises(CheckpointError, match="a part of 6 elements"):
                file.copy_range_into("a", first, np.empty(count, np.float32))


def test_packed_elements_are_listed_but_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fields = {"a": entry("F4", [2, 4], 0, 4), "b": entry("F6_E2M3", [4], 4, 7), "c": entry("F6_E3M2", [8], 7, 13)}
    path.write_bytes(file_bytes(fields, bytes(13)))
    with SafetensorsFile(path) as file:
        assert [each.nbytes for each in file.tensors.values()] == [4, 3, 6]
        for name in "abc":
            with pytest.raises(CheckpointError, match="packs its elements below a byte"):
                file.read(name)
            with pytest.raises(CheckpointError, match="packs its elements below a byte"):
                file.copy_into(name, np.empty(file.entry(name).shape, np.uint8))


def test_truth_values_are_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes({"a": entry("BOOL", [3], 0, 3)}, b"\0\1\2"))
    with SafetensorsFile(path) as file:
        with pytest.raises(CheckpointError, match="truth values of 0 and 1, got a byte of 2"):
            file.read("a")
        with pytest.raises(CheckpointError, match="truth values of 0 and 1"):
            file.copy_into("a", np.empty(3, np.bool_))
