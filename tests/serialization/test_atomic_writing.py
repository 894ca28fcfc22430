"""A write that fails or dies at any operation leaves the old file or folder or the new one, whole."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from mila.errors import CheckpointError, LifecycleError
from mila.serialization import (
    ArchiveMode,
    AtomicFile,
    AtomicFolder,
    ModelArchive,
    SafetensorsFile,
    filesystem,
    newest_complete,
    recover_folder,
    replace_folder_atomically,
    save_tensors,
    write_file_atomically,
)
from tests.serialization.exports import load_export, save_export
from tests.serialization.faults import Kill, cannot_exchange, faults
from tests.serialization.folders import names_in

OLD, NEW = 1.0, 2.0


def save_file(path: Path, value: float) -> None:
    save_tensors(path, {"a": np.full(3000, value, np.float32), "b": np.full(5, value, np.float32).T})


def load_file(path: Path) -> float | None:
    if not path.exists():
        return None
    with SafetensorsFile(path) as file:
        values = {float(value) for name in file.tensors for value in file.read(name)}
    assert len(values) == 1
    return values.pop()


def save_archive(path: Path, value: float) -> None:
    with ModelArchive.create(path, ArchiveMode.CHECKPOINT, sequence=int(value)) as archive:
        archive.write_json("state", {"value": value})
        with archive.scope("model"):
            array = np.full(3000, value, np.float32)
            archive.write_tensors("weights", [("a", np.float32, (3000,))], lambda writer: writer.write("a", array))


def load_archive(path: Path) -> float | None:
    recover_folder(path)
    if not path.exists():
        return None
    with ModelArchive.open(path) as archive:
        archive.verify()
        value = float(archive.read_json("state")["value"])
        with archive.scope("model"), archive.open_tensors("weights") as file:
            assert set(file.read("a")) == {value}
    assert archive.sequence == int(value)
    return value


Save = Callable[[Path, float], None]
Load = Callable[[Path], float | None]
CASES = [
    pytest.param(save_file, load_file, True, id="file"),
    pytest.param(save_archive, load_archive, True, id="archive, exchanged"),
    pytest.param(save_archive, load_archive, False, id="archive, renamed twice"),
]
EXPORTS = [
    pytest.param(save_export, load_export, True, id="export, exchanged"),
    pytest.param(save_export, load_export, False, id="export, renamed twice"),
]
ERRORS = [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO]
FAILING = [
    pytest.param(*case.values, number, id=f"{case.id}, {errno.errorcode[number]}")
    for cases, numbers in ((CASES, ERRORS), (EXPORTS, ERRORS[:1]))
    for case in cases
    for number in numbers
]
EVERY_OPERATION = range(10_000)


@pytest.mark.parametrize("there_before", [True, False], ids=["over an old one", "for the first time"])
@pytest.mark.parametrize("save, load, can_exchange", CASES + EXPORTS)
def test_a_writer_killed_at_any_operation_leaves_the_old_or_the_new(
    tmp_path: Path, save: Save, load: Load, can_exchange: bool, there_before: bool
) -> None:
    killed_at = []
    outcomes = set()
    for position in EVERY_OPERATION:
        path = tmp_path / str(position) / "target"
        path.parent.mkdir()
        if there_before:
            save(path, OLD)
        with faults(position, None, can_exchange=can_exchange) as plan:
            try:
                save(path, NEW)
            except Kill:
                killed_at.append(plan.fired)
        found = load(path)
        assert found in ((OLD, NEW) if there_before else (None, NEW)), f"killed at {position}: {plan.fired}"
        outcomes.add(found)
        # The next writer is not disturbed by what is left, and clears it away.
        save(path, NEW + 1)
        assert load(path) == NEW + 1
        assert names_in(path.parent) == ["target"], f"killed at {position}: {plan.fired}"
        if plan.fired is None:
            break
    assert len(killed_at) > 8
    assert {"write", "synchronize_path"} <= set(killed_at)
    assert outcomes == ({OLD, NEW} if there_before else {None, NEW})


@pytest.mark.parametrize("save, load, can_exchange, number", FAILING)
def test_an_error_at_any_operation_is_one_clear_error_or_none(
    tmp_path: Path, save: Save, load: Load, can_exchange: bool, number: int
) -> None:
    failed_at = set()
    for position in EVERY_OPERATION:
        path = tmp_path / str(position) / "target"
        path.parent.mkdir()
        save(path, OLD)
        message = None
        with faults(position, number, can_exchange=can_exchange) as plan:
            try:
                save(path, NEW)
            except CheckpointError as error:
                message = str(error)
        where = f"failed at {position}: {plan.fired}"
        if message is None:
            assert load(path) == NEW, where
        else:
            failed_at.add(plan.fired)
            assert path.exists(), f"{where}: nothing is left for a reader to recover"
            assert message.startswith(str(path)), where
            assert message.endswith(os.strerror(number)), where
            assert "\n" not in message
            if message.startswith(f"{path}: was written"):
                assert load(path) == NEW, where
            else:
                assert load(path) == OLD, f"{where}: {message}"
                assert names_in(path.parent) == ["target"], where
        save(path, NEW + 1)
        assert load(path) == NEW + 1
        assert names_in(path.parent) == ["target"], f"failed at {position}: {plan.fired}"
        if plan.fired is None:
            break
    assert {"create_file", "open_file", "write", "flush", "synchronize_file", "close", "replace"} <= failed_at


def test_everything_is_on_the_medium_before_it_gets_its_name(tmp_path: Path) -> None:
    path = tmp_path / "target"
    save_file(path, OLD)
    path.chmod(0o600)
    with faults(-1, None) as plan:
        save_file(path, NEW)
    steps = [name for name, _ in plan.log if name not in ("list_folder", "lock", "write")]
    assert steps == [
        "create_file", "open_file", "flush", "synchronize_file", "change_mode", "close", "replace", "synchronize_path",
    ]  # fmt: skip
    assert plan.log[-1] == ("synchronize_path", tmp_path.name)


def test_an_archive_gets_its_manifest_last_and_is_on_the_medium_before_it_gets_its_name(tmp_path: Path) -> None:
    path = tmp_path / "target"
    with faults(-1, None) as plan:
        save_archive(path, NEW)
    files = ["state.json", "weights.safetensors", "manifest.json"]
    created = [name for step, name in plan.log if step == "create_file"]
    assert [next(file for file in files if f".{file}." in name) for name in created] == files
    names = [step for step, _ in plan.log]
    renamed = names.index("rename")
    synchronized = [name for step, name in plan.log[:renamed] if step == "synchronize_path"]
    last = len(names[:renamed]) - names[:renamed][::-1].index("replace")
    after_the_manifest = [name for step, name in plan.log[last:renamed] if step == "synchronize_path"]
    assert {*files, "model"} <= set(synchronized)
    assert {*files, "model"} <= set(after_the_manifest)
    assert plan.log[renamed + 1 :] == [("synchronize_path", tmp_path.name)]


def test_resuming_finds_the_folder_a_killed_writer_moved_aside(tmp_path: Path) -> None:
    save_archive(tmp_path / "step-1", OLD)
    save_archive(tmp_path / "step-2", NEW)
    (tmp_path / "step-2").rename(tmp_path / ".step-2.0123456789abcdef.previous")
    assert newest_complete(tmp_path, "step-*") == tmp_path / "step-2"
    assert names_in(tmp_path) == ["step-1", "step-2"]


def test_a_previous_folder_whose_successor_is_in_place_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    save_archive(tmp_path / "a", OLD)
    (tmp_path / "a").rename(tmp_path / ".a.0123456789abcdef.previous")
    save_archive(tmp_path / "b", NEW)
    (tmp_path / "b").rename(tmp_path / "a")
    assert load_archive(tmp_path / "a") == NEW
    save_archive(tmp_path / "a", OLD)
    assert load_archive(tmp_path / "a") == OLD
    assert names_in(tmp_path) == ["a"]


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with AtomicFile(path) as one:
        one.file.write(b"one")
        write_file_atomically(path, lambda file: write(file, b"other"))
        assert path.read_bytes() == b"other"
    assert path.read_bytes() == b"one"
    folder = tmp_path / "folder"
    with AtomicFolder(folder) as first:
        (first.path / "f").write_bytes(b"first")
        replace_folder_atomically(folder, lambda path: write_bytes(path / "f", b"second"))
        assert (folder / "f").read_bytes() == b"second"
    assert (folder / "f").read_bytes() == b"first"
    assert names_in(tmp_path) == ["a", "folder"]


def write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_files_that_only_look_like_temporaries_are_left_alone(tmp_path: Path) -> None:
    kept = [".a.partial", ".a.xyz.partial", ".b.0123456789abcdef.partial", "a.0123456789abcdef.partial"]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".a.0123456789abcdef.partial").write_bytes(b"")
    write_file_atomically(tmp_path / "a", lambda file: write(file, b""))
    assert names_in(tmp_path) == sorted([*kept, "a"])


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        save_file(tmp_path / "a", OLD)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    save_file(path, OLD)
    path.chmod(mode)
    save_file(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    save_file(tmp_path / "blob", OLD)
    (tmp_path / "link").symlink_to("blob")
    save_file(tmp_path / "link", NEW)
    assert load_file(tmp_path / "blob") == OLD
    assert load_file(tmp_path / "link") == NEW


def test_a_special_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="expected a regular file or a free name"):
        save_file(tmp_path / "pipe", NEW)
    assert (tmp_path / "pipe").is_fifo()


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for path in (tmp_path / "missing" / "a", tmp_path / "file" / "a", tmp_path / "folder", tmp_path / ("n" * 300)):
        with pytest.raises(CheckpointError, match=r"could not be|expected a regular file"):
            save_file(path, NEW)
    for path in (tmp_path / "missing" / "a", tmp_path / "file", tmp_path / "link", tmp_path / "file" / "a"):
        with pytest.raises(CheckpointError):
            replace_folder_atomically(path, lambda path: None)
    assert names_in(tmp_path) == ["file", "folder", "link"]


def test_a_failing_callback_leaves_what_was_there(tmp_path: Path) -> None:
    save_file(tmp_path / "a", OLD)
    (tmp_path / "folder").mkdir()

    def fail(anything: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file_atomically(tmp_path / "a", fail)
    with pytest.raises(KeyboardInterrupt):
        replace_folder_atomically(tmp_path / "folder", fail)
    assert load_file(tmp_path / "a") == OLD
    assert names_in(tmp_path) == ["a", "folder"]


def test_committing_twice_is_refused(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a") as file:
        pass
    with pytest.raises(LifecycleError):
        file.commit()
    with AtomicFolder(tmp_path / "b") as folder:
        pass
    with pytest.raises(LifecycleError):
        folder.commit()
    file.abort()
    folder.abort()
    assert names_in(tmp_path) == ["a", "b"]


def test_a_new_folder_takes_the_place_of_an_old_one_in_one_step_where_the_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    for content, exchange in ((b"1", filesystem.exchange), (b"2", filesystem.exchange), (b"3", cannot_exchange)):
        monkeypatch.setattr(filesystem, "exchange", exchange)
        with AtomicFolder(folder) as opened:
            (opened.path / "f").write_bytes(content)
        assert (folder / "f").read_bytes() == content
        assert names_in(tmp_path) == ["folder"]
