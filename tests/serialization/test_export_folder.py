"""An export replaces an earlier export, whole and in one step, and never anything else."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mila.errors import CheckpointError, LifecycleError
from mila.serialization import ExportFolder, filesystem, open_tensors
from tests.serialization.exports import FILES, INDEX, SHARDS, load_export, save_export
from tests.serialization.faults import cannot_exchange
from tests.serialization.folders import names_in
from tests.serialization.privileges import as_ordinary_user

MARK = "mila_export.json"


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_an_export_lists_its_files_and_gets_its_name_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "tokenizer.json").write_bytes(b"t" * 3_000_000)
    (tmp_path / "source" / "link.json").symlink_to("tokenizer.json")
    with ExportFolder(tmp_path / "out") as folder:
        folder.write_json("config.json", {"b": 1, "a": (2, 3)})
        folder.write_bytes("vocab.txt", b"v")
        folder.copy_file(tmp_path / "source" / "tokenizer.json")
        folder.copy_file(tmp_path / "source" / "link.json")
        with folder.tensors("1GB") as writer:
            writer.begin()
        assert not (tmp_path / "out").exists()
    files = ["config.json", "link.json", "model.safetensors", "tokenizer.json", "vocab.txt"]
    mark = json.loads((tmp_path / "out" / MARK).read_text())
    assert mark == {"format": "mila-export", "version": 1, "files": files}
    assert names_in(tmp_path / "out") == sorted([*files, MARK])
    assert (tmp_path / "out" / "config.json").read_text() == '{\n  "a": [\n    2,\n    3\n  ],\n  "b": 1\n}\n'
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == b"t" * 3_000_000
    assert not (tmp_path / "out" / "link.json").is_symlink()
    assert names_in(tmp_path) == ["out", "source"]


def test_an_earlier_export_is_replaced_with_all_its_shards(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_export(path, 1)
    with ExportFolder(path) as folder, folder.tensors("1GB") as writer:
        writer.declare("a", np.int8, (1,))
        writer.begin()
        writer.write("a", np.ones(1, np.int8))
    assert names_in(path) == [MARK, "model.safetensors"]
    save_export(path, 2)
    assert names_in(path) == FILES
    assert load_export(path) == 2


@pytest.mark.parametrize("exchange", [filesystem.exchange, cannot_exchange])
def test_an_export_may_take_the_place_of_the_weights_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: Callable[[Path, Path], bool]
) -> None:
    monkeypatch.setattr(filesystem, "exchange", exchange)
    path = tmp_path / "model"
    save_export(path, 3, elements=300_000)
    with open_tensors(path) as source:
        views = {name: source.read(name) for name in "ab"}
        with ExportFolder(path) as folder:
            folder.copy_file(path / "config.json")
            with folder.tensors(views["a"].nbytes) as writer:
                for name in "ab":
                    writer.declare(name, np.float32, views[name].shape)
                writer.begin()
                for name in "ab":
                    writer.write(name, source.read(name))
        assert all(set(view.tolist()) == {3.0} for view in views.values()), "what was mapped stays"
    assert load_export(path) == 3
    assert names_in(tmp_path) == ["model"]


def mark_of(*files: object, **fields: object) -> bytes:
    return json.dumps({"format": "mila-export", "version": 1, "files": files, **fields}).encode()


FOREIGN: dict[str, tuple[dict[str, bytes], str]] = {
    "notes": ({"notes.txt": b"mine"}, r"got a folder that holds \['notes.txt'\]; choose another folder"),
    "a downloaded model": (
        {"config.json": b"{}", "model.safetensors": b"x"},
        r"\['config.json', 'model.safetensors'\]",
    ),
    "an export and a file": ({"config.json": b"{}", MARK: mark_of("config.json"), "b": b"mine"}, r"holds \['b'\]"),
    "hidden": ({MARK: mark_of(), ".git/config": b"mine"}, r"holds \['.git'\]"),
    "a folder called like a file": ({MARK: mark_of("config.json"), "config.json/b": b"mine"}, r"\['config.json'\]"),
    "many": ({f"f{i}": b"" for i in range(100)}, "holds a list of 100"),
    "newer": ({MARK: mark_of(version=2)}, f"{MARK}: expected the file list of mila-export, version 1"),
    "of somebody else": ({MARK: mark_of(format="x")}, f"{MARK}: expected the file list"),
    "no list": ({MARK: b"{}"}, f"{MARK}: expected the file list"),
    "a list of other things": ({MARK: mark_of({"a": 1})}, f"{MARK}: expected the file list"),
    "no JSON": ({MARK: b""}, f"{MARK}: expected a file that starts"),
}


@pytest.mark.parametrize("files, message", FOREIGN.values(), ids=FOREIGN.keys())
def test_anything_else_is_refused_by_name_and_left_alone(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    path = tmp_path / "model"
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        ExportFolder(path)
    assert str(refused.value).startswith(str(path))
    assert contents_of(path) == files
    assert names_in(tmp_path) == ["model"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    save_export(tmp_path / "real", 1)
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = names_in(tmp_path)
    for name in ("file", "link", "dangling"):
        with pytest.raises(CheckpointError, match="expected a folder or a free name, got a file or a link"):
            ExportFolder(tmp_path / name)
    with pytest.raises(
        CheckpointError, match=r"missing.model: expected a name in a folder that exists, got no .*missing"
    ):
        ExportFolder(tmp_path / "missing" / "model")
    assert names_in(tmp_path) == before


def test_what_comes_into_the_old_folder_meanwhile_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_export(path, 1)
    with pytest.raises(CheckpointError, match=r"got a folder that holds \['notes.txt'\]"), ExportFolder(path) as folder:
        folder.write_json("config.json", {})
        (path / "notes.txt").write_bytes(b"mine")
    (path / "notes.txt").unlink()
    assert load_export(path) == 1
    assert names_in(tmp_path) == ["model"]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_the_permissions_of_the_folder_are_taken_over(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "model"
    path.mkdir()
    path.chmod(mode)
    for value in (1, 2):
        save_export(path, value)
        assert stat.S_IMODE(path.stat().st_mode) == mode | 0o700
    assert load_export(path) == 2


def test_a_place_that_may_not_be_written_is_named() -> None:
    with as_ordinary_user() as folder:
        save_export(folder / "model", 1)
        folder.chmod(0o500)
        with pytest.raises(CheckpointError, match=r"model: could not be created: Permission denied"):
            save_export(folder / "model", 2)
        assert load_export(folder / "model") == 1


def test_names_are_checked(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "-x").write_bytes(b"")
    with ExportFolder(tmp_path / "out") as folder:
        folder.write_bytes("a", b"1")
        for name in ("../b", "a/b", "", ".", "..", ".hidden", "a\0", "a\\b", "c:d"):
            with pytest.raises(CheckpointError, match="expected the name of a file"):
                folder.write_bytes(name, b"2")
        with pytest.raises(CheckpointError, match="expected a name that is free, got 'a'"):
            folder.write_bytes("a", b"2")
        with pytest.raises(CheckpointError, match="expected the name of a file"):
            folder.copy_file(tmp_path / "source" / "-x")
        for source in ("missing", "source"):
            with pytest.raises(CheckpointError, match=f"{source}: (could not be opened|expected a file)"):
                folder.copy_file(tmp_path / source)
        with pytest.raises(CheckpointError, match=r"out.c.json: expected values that JSON can hold"):
            folder.write_json("c.json", {"a": float("nan")})
    assert contents_of(tmp_path / "out") == {"a": b"1", MARK: (tmp_path / "out" / MARK).read_bytes()}


def test_calls_out_of_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(LifecycleError, match="close before the writer of the weights was closed"):  # noqa: SIM117
        with ExportFolder(path) as folder:
            writer = folder.tensors(10)
            writer.declare("a", np.int8, (1,))
            writer.begin()
            writer.write("a", np.ones(1, np.int8))
            with pytest.raises(LifecycleError, match="tensors was called before"):
                folder.tensors(10)
    assert writer.is_closed
    assert names_in(tmp_path) == [], "shards without their index are never exported"
    with ExportFolder(path) as folder:
        folder.write_bytes("a", b"")
    folder.close()
    folder.abort()
    for call in (lambda: folder.write_bytes("b", b""), lambda: folder.write_json("b", {}), lambda: folder.tensors(1)):
        with pytest.raises(LifecycleError, match="use of a folder that was closed"):
            call()
    assert names_in(path) == ["a", MARK]


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_export(path, 1)
    with pytest.raises(KeyboardInterrupt), ExportFolder(path) as folder, folder.tensors(100) as writer:
        writer.declare("a", np.int8, (100,))
        writer.declare("b", np.int8, (100,))
        writer.begin()
        writer.write("a", np.ones(100, np.int8))
        raise KeyboardInterrupt
    assert load_export(path) == 1
    assert names_in(tmp_path) == ["model"]
    assert {INDEX, *SHARDS} <= set(names_in(path))
