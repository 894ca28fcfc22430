"""A small JSON file, such as a config, is one strict JSON object or one error that names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mila.errors import CheckpointError
from mila.serialization import read_json_object
from tests.serialization.privileges import as_ordinary_user

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"expected a config that starts with '\{', got nothing; is the download complete\?"),
    "white space": (b" \n", r"is the download complete\?"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer instead of the file"),
    "HTML": (b"\n<html>", "HTML or XML instead of the file: incomplete download"),
    "list": (b"[1]", r"starts with '\{'"),
    "text": (b"Entry not found", r"starts with '\{', got b'Entry not found'"),
    "byte order mark": (b"\xef\xbb\xbf{}", r"starts with '\{', got a byte order mark before the"),
    "UTF-16": ("{}".encode("utf-16"), r"starts with '\{', got text in UTF-16 with a byte order mark"),
    "cut": (b'{"a": 1, "b', "a config of valid JSON"),
    "two objects": (b"{}{}", "a config of valid JSON, got text that is not JSON: Extra data"),
    "comment": (b'{"a": 1} // note', "a config of valid JSON"),
    "NaN": (b'{"a": NaN}', "a config of strict JSON, got NaN"),
    "Infinity": (b'{"a": [-Infinity]}', "a config of strict JSON, got -Infinity"),
    "infinite in digits": (b'{"a": 1e999}', "the number '1e999', beyond every float"),
    "key twice": (b'{"a": 1, "a": 2}', "the key 'a' twice"),
    "key twice, deep": (b'{"a": [{"b": 1, "b": 1}]}', "the key 'b' twice"),
    "endless integer": (b'{"a": ' + b"1" * 1001 + b"}", "an integer of 1001 digits"),
    "deep": (b'{"a":' * 100_000, "nesting too deep"),
    "NUL": (b'{"a": 1}\0', "a NUL byte"),
}


@pytest.mark.parametrize("content, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_one_strict_object_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_json_object(path, what="config")
    assert str(refused.value).startswith(f"{path}: expected ")
    assert "\n" not in str(refused.value)


def test_what_real_models_have_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(
        ' {"model_max_length": 1000000000000000019884624838656, "a": [1e-5, null, true, "\\ud83d\\ude00 é"]}\n'
    )
    (tmp_path / "link").symlink_to(path)
    for name in (path, str(path), tmp_path / "link"):
        assert read_json_object(name) == {"model_max_length": int(1e30), "a": [1e-5, None, True, "😀 é"]}


def test_a_file_has_a_size_at_which_reading_ends(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}" + b" " * 98)
    assert read_json_object(path, limit=100) == {}
    with pytest.raises(CheckpointError, match="expected at most 99 bytes of JSON, got more"):
        read_json_object(path, limit=99)
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(CheckpointError, match="expected at most 100000000 bytes of JSON, got more"):
        read_json_object(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("missing", "could not be opened: No such file or directory"),
        ("", "expected a file, got a folder, a pipe or a device"),
        ("pipe", "expected a file, got a folder, a pipe or a device"),
        ("n" * 5000, "could not be opened: File name too long"),
        ("a\0b", "expected a path that the system can open"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_json_object(tmp_path / name)


def test_a_file_that_may_not_be_read_is_named_with_the_reason() -> None:
    with as_ordinary_user() as folder:
        path = folder / "config.json"
        path.write_bytes(b"{}")
        path.chmod(0)
        with pytest.raises(CheckpointError, match="could not be opened: Permission denied"):
            read_json_object(path)
