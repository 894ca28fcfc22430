"""An archive reads back what was written, and is opened only when it is whole and its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import CheckpointError, LifecycleError
from mila.serialization import ArchiveMode, ArchiveWriter, ModelArchive, SafetensorsWriter, newest_complete
from tests.serialization.folders import names_in

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_arrays(writer: SafetensorsWriter) -> None:
    writer.write("a", ARRAY)
    writer.write("b", np.full((), 3, np.int8))


def write_weights(archive: ArchiveWriter, name: str = "weights") -> None:
    archive.write_tensors(
        name,
        [("a", np.float32, (2, 3)), ("b", "I8", ())],
        write_arrays,
        metadata={"k": "v"},
        aliases={"tied": "a"},
    )


def save(path: Path, sequence: int | None = None, mode: ArchiveMode = ArchiveMode.CHECKPOINT) -> None:
    with ModelArchive.create(path, mode, sequence) as archive:
        archive.write_json("config", {"layers": 2})
        with archive.scope("model"):
            if mode is not ArchiveMode.ARCHITECTURE:
                write_weights(archive)
            with archive.scope("block_0.ln_1"):
                archive.write_json("config", {"epsilon": 1e-5})


@pytest.mark.parametrize("mode", ArchiveMode)
def test_what_was_written_is_read(tmp_path: Path, mode: ArchiveMode) -> None:
    path = tmp_path / "a"
    save(path, 7, mode)
    with ModelArchive.open(path) as archive:
        archive.verify()
        assert (archive.path, archive.mode, archive.sequence) == (path, mode, 7)
        assert archive.read_json("config") == {"layers": 2}
        assert archive.has("config")
        assert not archive.has("weights")
        with archive.scope("model"):
            with archive.scope("block_0.ln_1"):
                assert archive.read_json("config") == {"epsilon": 1e-5}
            assert archive.has("weights") == (mode is not ArchiveMode.ARCHITECTURE)
            if mode is not ArchiveMode.ARCHITECTURE:
                with archive.open_tensors("weights") as file:
                    assert np.array_equal(file.read("tied"), ARRAY)
                    assert file.read("b") == 3
                    assert file.metadata["k"] == "v"
    assert names_in(tmp_path) == ["a"]
    manifest = json.loads((path / "manifest.json").read_text())
    files = {each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"}


def test_json_reads_back_equal_and_is_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    value = {"state": 2**127 + 1, "é": ["😀", None, True, -0.0, 1e-300, {"": []}], "tuple": (1, 2), "zero": 0}
    for name, written in (("a", value), ("b", dict(reversed(value.items())))):
        with ModelArchive.create(tmp_path / name, ArchiveMode.CHECKPOINT) as archive:
            archive.write_json("value", written)
    with ModelArchive.open(tmp_path / "a") as reader:
        assert reader.read_json("value") == {**value, "tuple": [1, 2]}
    for file in ("value.json", "manifest.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": {1: 2}},
        {"a": np.float32(1)},
        {"a": b""},
        {"a": "\ud800"},
        {"a": {1, 2}},
        {"a": ArchiveMode.CHECKPOINT},
        [],
    ],
    ids=repr,
)
def test_what_json_cannot_hold_is_refused(tmp_path: Path, value: Any) -> None:
    with ModelArchive.create(tmp_path / "a", ArchiveMode.CHECKPOINT) as archive:
        with pytest.raises(CheckpointError, match=r"value\.json: expected"):
            archive.write_json("value", value)
        assert not archive.has("value")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/b", "/a", "a\\b", "C:a", "a\0", ".hidden", "a.", "-a", "é", "a b", "a\n", "n" * 129],
)
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / "read")
    with (
        ModelArchive.create(tmp_path / "written", ArchiveMode.CHECKPOINT) as writer,
        ModelArchive.open(tmp_path / "read") as reader,
    ):
        calls: list[Callable[[], object]] = [
            lambda: writer.write_json(name, {}),
            lambda: write_weights(writer, name),
            lambda: writer.scope(name).__enter__(),
            lambda: reader.scope(name).__enter__(),
            lambda: reader.read_json(name),
            lambda: reader.open_tensors(name),
            lambda: reader.has(name),
        ]
        for call in calls:
            with pytest.raises(CheckpointError, match="expected a name of"):
                call()
    assert names_in(tmp_path) == ["read", "written"]


def test_names_are_used_once_in_either_case(tmp_path: Path) -> None:
    with ModelArchive.create(tmp_path / "a", ArchiveMode.CHECKPOINT) as archive:
        archive.write_json("config", {})
        write_weights(archive, "config")
        for name in ("config", "Config", "manifest"):
            with pytest.raises(CheckpointError, match="a name that is free"):
                archive.write_json(name, {})
        with archive.scope("model"):
            archive.write_json("manifest", {})


def test_an_archive_of_the_architecture_takes_no_tensors(tmp_path: Path) -> None:
    with (
        ModelArchive.create(tmp_path / "a", ArchiveMode.ARCHITECTURE) as archive,
        pytest.raises(CheckpointError, match="expected no tensors"),
    ):
        write_weights(archive)


def test_a_closed_archive_is_not_used(tmp_path: Path) -> None:
    with ModelArchive.create(tmp_path / "a", ArchiveMode.CHECKPOINT) as writer:
        writer.write_json("config", {})
    writer.close()
    writer.abort()
    with ModelArchive.open(tmp_path / "a") as reader:
        pass
    for call in (
        lambda: writer.write_json("b", {}),
        lambda: reader.read_json("config"),
        lambda: reader.open_tensors("config"),
        lambda: reader.has("config"),
    ):
        with pytest.raises(LifecycleError):
            call()
    assert names_in(tmp_path / "a") == ["config.json", "manifest.json"]


def test_a_missing_name_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a")
    with ModelArchive.open(tmp_path / "a") as archive:
        (tmp_path / "a" / "stray.json").write_text("{}")
        for read in (archive.read_json, archive.open_tensors):
            for name in ("weights", "stray", "manifest"):
                with pytest.raises(CheckpointError, match="none in the manifest"):
                    read(name)


# what is not a whole archive


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads((path / "manifest.json").read_text())
    change(fields)
    (path / "manifest.json").write_text(json.dumps(fields))


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda path: edit_manifest(path, change)


def with_file(name: str) -> Callable[[Path], object]:
    def add(fields: dict[str, Any]) -> None:
        fields["files"][name] = {"bytes": 0, "sha256": 64 * "0"}

    return edited(add)


def link_outside(path: Path) -> None:
    outside = path.with_name("outside")
    (path / "config.json").rename(outside)
    (path / "config.json").symlink_to(outside)


def append(path: Path) -> None:
    with (path / "config.json").open("ab") as file:
        file.write(b" ")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "expected the folder of an archive, got none"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "unfinished, or no archive"),
    "empty manifest": (lambda path: (path / "manifest.json").write_bytes(b""), "starts with"),
    "half a manifest": (lambda path: (path / "manifest.json").write_bytes(b'{"format":'), "valid JSON"),
    "foreign manifest": (lambda path: (path / "manifest.json").write_text('{"name":"app"}'), "mila-archive, got None"),
    "newer version": (edited(lambda fields: fields.update(version=2)), "version 1 or older, got 2"),
    "version that is true": (edited(lambda fields: fields.update(version=True)), "a version number, got True"),
    "unknown mode": (edited(lambda fields: fields.update(mode="other")), "a mode of"),
    "sequence that is text": (edited(lambda fields: fields.update(sequence="1")), "a sequence number or null"),
    "negative sequence": (edited(lambda fields: fields.update(sequence=-1)), "a sequence number or null"),
    "additional field": (edited(lambda fields: fields.update(other=1)), "the fields"),
    "missing field": (edited(lambda fields: fields.pop("files")), "the fields"),
    "files that are a list": (edited(lambda fields: fields.update(files=[])), "an object of files"),
    "file without a hash": (edited(lambda fields: fields["files"]["config.json"].pop("sha256")), "bytes and sha256"),
    "size that is text": (edited(lambda fields: fields["files"]["config.json"].update(bytes="1")), "a size of"),
    "hash that is short": (edited(lambda fields: fields["files"]["config.json"].update(sha256="0")), "a SHA-256 of"),
    "file outside": (with_file("../outside"), "files inside the archive, got '../outside'"),
    "absolute file": (with_file("/etc/passwd"), "files inside the archive"),
    "file with a backslash": (with_file("..\\a"), "files inside the archive"),
    "file that is missing": (with_file("missing.json"), "expected 0 bytes, got no such file"),
    "file removed": (lambda path: (path / "model" / "weights.safetensors").unlink(), "got no such file"),
    "file truncated": (lambda path: (path / "config.json").write_bytes(b"{}"), "bytes, got 2"),
    "file lengthened": (append, "bytes, got"),
    "link that leaves": (link_outside, "a link that leaves it"),
}


@pytest.mark.parametrize("damage, message", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_not_a_whole_archive_is_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "a"
    save(path, 1)
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        ModelArchive.open(path)
    assert newest_complete(tmp_path) is None


def test_verifying_finds_a_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path)
    weights = path / "model" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with (
        ModelArchive.open(path) as archive,
        pytest.raises(CheckpointError, match=r"weights\.safetensors: .* SHA"),
    ):
        archive.verify()


# replacing and resuming


def test_an_archive_replaces_an_archive_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path)
    with ModelArchive.create(path, ArchiveMode.WEIGHTS_ONLY) as archive:
        archive.write_json("other", {})
        assert (path / "config.json").exists()
    assert names_in(path) == ["manifest.json", "other.json"]
    assert names_in(tmp_path) == ["a"]


def test_an_exception_leaves_the_old_archive(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path, 1)
    with pytest.raises(KeyboardInterrupt), ModelArchive.create(path, ArchiveMode.CHECKPOINT, 2) as archive:
        write_weights(archive)
        raise KeyboardInterrupt
    with ModelArchive.open(path) as reader:
        reader.verify()
        assert reader.sequence == 1
    assert names_in(tmp_path) == ["a"]


def test_a_folder_with_somebody_elses_files_is_not_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "diary.txt").write_text("dear diary")
    with pytest.raises(CheckpointError):
        ModelArchive.create(home, ArchiveMode.CHECKPOINT)
    save(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"also holds \['notes.txt'\]"):
        ModelArchive.create(tmp_path / "a", ArchiveMode.CHECKPOINT)
    assert names_in(home) == ["diary.txt"]
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    assert names_in(tmp_path) == ["a", "empty", "home"]


@pytest.mark.parametrize("sequence", [-1, 1.0, True, "1"])
def test_a_sequence_number_is_a_number(tmp_path: Path, sequence: Any) -> None:
    with pytest.raises(CheckpointError, match="a sequence number"):
        ModelArchive.create(tmp_path / "a", ArchiveMode.CHECKPOINT, sequence)


def test_resuming_takes_the_largest_sequence_number_that_is_complete(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "missing") is None
    assert newest_complete(tmp_path) is None
    for name, sequence in (("step-9", 9), ("step-10", 10), ("step-2", 2), ("best", 50)):
        save(tmp_path / name, sequence)
    save(tmp_path / "step-none")
    save(tmp_path / "step-weights", 99, ArchiveMode.WEIGHTS_ONLY)
    (tmp_path / "step-half").mkdir()
    (tmp_path / "step-file").write_bytes(b"")
    shutil.copytree(tmp_path / "step-10", tmp_path / ".step-77.0123456789abcdef.partial")
    save(tmp_path / "step-11", 11)
    (tmp_path / "step-11" / "model" / "weights.safetensors").write_bytes(b"half")
    assert newest_complete(tmp_path, "step-*") == tmp_path / "step-10"
    assert newest_complete(tmp_path) == tmp_path / "best"
    assert newest_complete(tmp_path, "none-*") is None


def test_two_checkpoints_of_one_number_are_told_apart_by_name(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        save(tmp_path / name, 1)
    assert newest_complete(tmp_path) == tmp_path / "c"


def test_a_value_that_holds_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mila.serialization.manifest.LARGEST_JSON_FILE", 1000)
    with (
        ModelArchive.create(tmp_path / "a", ArchiveMode.CHECKPOINT) as archive,
        pytest.raises(CheckpointError, match="holds itself"),
    ):
        archive.write_json("value", endless())
