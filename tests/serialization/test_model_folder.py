"""The folder of a model is opened where it says one thing; otherwise one error says what is there and what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mila.errors import CheckpointError
from mila.serialization import SafetensorsFile, ShardedTensors, TensorSource, open_tensors, save_tensors
from tests.serialization.exports import load_export, save_export
from tests.serialization.privileges import as_ordinary_user
from tests.serialization.safetensors_bytes import file_bytes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EMPTY_FILE = file_bytes("{}")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
PAGE = b"<!DOCTYPE html>\n<html><body>404</body></html>"


def write_single(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / SINGLE, {"a": np.ones(2, np.float32)})


def write_shards(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / FIRST, {"a": np.ones(2, np.float32)})
    save_tensors(folder / SECOND, {"b": np.full(2, 2, np.float32)})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": FIRST, "b": SECOND}}))


@pytest.mark.parametrize("write, kind", [(write_single, SafetensorsFile), (write_shards, ShardedTensors)])
def test_the_usual_folders_are_opened_whatever_lies_beside_the_weights(
    tmp_path: Path, write: Callable[[Path], None], kind: type[TensorSource]
) -> None:
    write(tmp_path)
    save_tensors(tmp_path / "consolidated.safetensors", {"a": np.zeros(9, np.int8), "x": np.zeros(1, np.int8)})
    save_tensors(tmp_path / "model-00003-of-00003.safetensors", {"a": np.zeros(9, np.int8)})
    for name in ("pytorch_model.bin", "config.json", "README.md", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(b"anything")
    (tmp_path / "original").mkdir()
    with open_tensors(tmp_path) as source:
        assert type(source) is kind
        assert set(source.tensors) == ({"a"} if kind is SafetensorsFile else {"a", "b"})
        assert source.read("a").tolist() == [1, 1]


UNDECIDED: dict[str, tuple[dict[str, bytes], str]] = {
    "nothing": ({"config.json": b"{}"}, r"got neither$"),
    "both": ({SINGLE: EMPTY_FILE, INDEX: b"{}"}, r"got both; remove one of them, or name the file to open$"),
    "PyTorch": (
        {"pytorch_model.bin": b"PK\3\4", "training_args.bin": b"x"},
        r"got neither, but \['pytorch_model.bin'\]; convert it with transformers: .*save_pretrained",
    ),
    "PyTorch in shards": (
        {"pytorch_model-00001-of-00002.bin": b"", "pytorch_model-00002-of-00002.bin": b""},
        r"got neither, but \['pytorch_model-00001-of-00002.bin', .*convert it",
    ),
    "PyTorch's other endings": ({"a.pt": b"", "b.pth": b"", "c.ckpt": b""}, r"\['a.pt', 'b.pth', 'c.ckpt'\]; convert"),
    "state of training": ({"optimizer.pt": b"", "training_args.bin": b"", "rng_state_0.pth": b""}, r"got neither$"),
    "another name": ({"weights.safetensors": EMPTY_FILE}, r"got neither, but \['weights.safetensors'\]; name the file"),
    "a variant": ({"model.fp16.safetensors": EMPTY_FILE}, r"got neither, but \['model.fp16.safetensors'\]; name"),
    "no index": ({FIRST: EMPTY_FILE, SECOND: EMPTY_FILE}, r"got shards without an index: .*download complete\?$"),
    "one shard": ({SECOND: EMPTY_FILE}, r"got shards without an index: \['model-00002.*download complete\?$"),
    "another index": ({"other.safetensors.index.json": b"{}"}, r"got neither$"),
    "GGUF": ({"model.Q4_1.gguf": b"GGUF"}, r"got neither, but \['model.Q4_1.gguf'\]; convert it with: mila import"),
}


@pytest.mark.parametrize("files, message", UNDECIDED.values(), ids=UNDECIDED.keys())
def test_a_folder_that_does_not_say_one_thing_is_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        open_tensors(tmp_path)
    expected = f"{tmp_path}: expected either {SINGLE} or {INDEX}, "
    assert str(refused.value).startswith(expected)


DAMAGES: dict[str, tuple[bytes, str]] = {
    "LFS pointer": (POINTER, "a Git LFS pointer instead of the file: incomplete download"),
    "HTML": (PAGE, "HTML or XML instead of the file: incomplete download"),
    "empty": (b"", "is the download complete"),
    "pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(100), r"pickle.*convert it|starts with"),
    "zip": (b"PK\3\4" + bytes(100), r"zip archive.*convert it"),
    "GGUF": (b"GGUF" + bytes(100), r"a GGUF file; convert it with: mila import"),
}


@pytest.mark.parametrize("file", [SINGLE, FIRST, SECOND, INDEX])
@pytest.mark.parametrize("content, message", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_was_downloaded_instead_of_a_file_is_called_that(
    tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    (write_single if file == SINGLE else write_shards)(tmp_path)
    (tmp_path / file).write_bytes(content)
    if file == INDEX and content[:1] in (b"\x80", b"P", b"G"):
        message = r"expected an? index"
    with pytest.raises(CheckpointError, match=message) as refused:
        open_tensors(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / file))


@pytest.mark.parametrize("file", [SINGLE, FIRST, SECOND, INDEX])
@pytest.mark.parametrize("kept", [0, 4, 20, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, file: str, kept: int) -> None:
    (write_single if file == SINGLE else write_shards)(tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[:kept])
    with pytest.raises(CheckpointError) as refused:
        open_tensors(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / file))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"expected the shard '{SECOND}', got no such file; is the download"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("denied", [SINGLE, FIRST, INDEX, "."])
def test_a_file_that_may_not_be_read_is_named_with_the_reason(denied: str) -> None:
    with as_ordinary_user() as folder:
        (write_single if denied == SINGLE else write_shards)(folder)
        (folder / denied).chmod(0)
        with pytest.raises(CheckpointError, match=r"could not be (opened|read): Permission denied") as refused:
            open_tensors(folder)
        assert str(refused.value).startswith(str(folder if denied == "." else folder / denied))


def test_a_folder_that_may_not_be_entered_is_named_with_the_reason() -> None:
    with as_ordinary_user() as folder:
        for sub in ("inner", "outer/inner"):
            write_shards(folder / sub)
        (folder / "outer").chmod(0)
        (folder / "inner").chmod(0o400)
        with pytest.raises(CheckpointError, match=r"inner.model.*: could not be (opened|read): Permission denied"):
            open_tensors(folder / "inner")
        with pytest.raises(CheckpointError, match=r"outer.inner: could not be opened: Permission denied"):
            open_tensors(folder / "outer" / "inner")


# the Hugging Face cache


def cache_of(write: Callable[[Path], None], cache: Path, subfolder: str = "") -> Path:
    """Lay files out as the cache does: content under its hash among the blobs, links to it in the snapshot."""
    repository = cache / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / ("0" * 40) / subfolder
    write(cache / "plain")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((cache / "plain").iterdir())):
        file.rename(blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"{number:064x}", snapshot))
    return snapshot


@pytest.mark.parametrize("subfolder", ["", "weights", "a/b"])
@pytest.mark.parametrize("write", [write_single, write_shards])
def test_a_snapshot_of_the_cache_is_opened(tmp_path: Path, write: Callable[[Path], None], subfolder: str) -> None:
    snapshot = cache_of(write, tmp_path, subfolder)
    (tmp_path / "linked").symlink_to(snapshot)
    for path in (snapshot, tmp_path / "linked"):
        with open_tensors(path) as source:
            assert source.read("a").tolist() == [1, 1]


def test_a_snapshot_whose_blob_is_gone_is_incomplete(tmp_path: Path) -> None:
    snapshot = cache_of(write_shards, tmp_path)
    (snapshot / SECOND).resolve().unlink()
    with pytest.raises(CheckpointError, match=f"expected the shard '{SECOND}', got no such file; is the download"):
        open_tensors(snapshot)


@pytest.mark.parametrize("place", ["elsewhere", "models--org--other/blobs", "models--org--name/blobs/deep"])
def test_a_snapshot_leads_to_the_blobs_of_its_own_repository_alone(tmp_path: Path, place: str) -> None:
    snapshot = cache_of(write_shards, tmp_path)
    elsewhere = tmp_path / place / "file"
    elsewhere.parent.mkdir(parents=True)
    (snapshot / SECOND).resolve().rename(elsewhere)
    (snapshot / SECOND).unlink()
    (snapshot / SECOND).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=f"expected a shard inside the index's folder, got the link '{SECOND}'"):
        open_tensors(snapshot)
    with open_tensors(snapshot, follow_links=True) as source:
        assert source.read("b").tolist() == [2, 2]


# after a killed export


def test_opening_finds_the_export_that_a_killed_writer_moved_aside(tmp_path: Path) -> None:
    save_export(tmp_path / "model", 1)
    (tmp_path / "model").rename(tmp_path / ".model.0123456789abcdef.previous")
    with open_tensors(tmp_path / "model") as source:
        assert set(source.tensors) == {"a", "b"}
    assert load_export(tmp_path / "model") == 1
