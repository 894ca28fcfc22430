"""The manifest of an archive: which files belong to it, how long they are and what they hash to.

It is written last, so a folder without one was never finished.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mila.serialization.failures import refusal, shown
from mila.serialization.strict_json import LARGEST_JSON_FILE, read_json_object

MANIFEST_NAME = "manifest.json"
FORMAT_NAME = "mila-archive"
FORMAT_VERSION = 1

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = frozenset({"format", "version", "mode", "sequence", "files"})


class ArchiveMode(enum.Enum):
    """What an archive holds.

    `CHECKPOINT`: all that a training run needs to go on as if it had never stopped. `WEIGHTS_ONLY`: parameters and
    configuration. `ARCHITECTURE`: configuration alone; tensors are refused.
    """

    CHECKPOINT = "checkpoint"
    WEIGHTS_ONLY = "weights_only"
    ARCHITECTURE = "architecture"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The size in bytes and the SHA-256, in hexadecimal, of one file of an archive."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive says of itself: its mode, its place in a sequence (None: in none), its files by relative path."""

    mode: ArchiveMode
    sequence: int | None
    files: Mapping[str, FileRecord]


def is_segment(name: object) -> bool:
    """Whether a name can be one step of a path inside an archive, on every system."""
    return isinstance(name, str) and _SEGMENT.fullmatch(name) is not None and not name.endswith(".")


def hash_file(path: Path) -> FileRecord:
    """Return the record of a file, read from the disk."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(file.tell(), digest)


def format_json(value: object, path: Path | str) -> bytes:
    """Return a value as JSON that reads back equal: the same value gives the same bytes.

    Raises:
        CheckpointError: what JSON cannot hold: keys that are not strings, NaN, infinities, other types.
    """
    _check_storable(value, path)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, indent=2)
        return text.encode("utf-8") + b"\n"
    except (ValueError, RecursionError) as error:
        raise refusal(path, expected="values that JSON can hold", got=str(error)) from None


def manifest_bytes(manifest: Manifest, path: Path) -> bytes:
    """Return the text of a manifest."""
    files = {name: {"bytes": record.size, "sha256": record.sha256} for name, record in manifest.files.items()}
    fields = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "mode": manifest.mode.value,
        "sequence": manifest.sequence,
        "files": files,
    }
    return format_json(fields, path)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an archive's folder.

    Raises:
        CheckpointError: none there, a foreign or malformed one, or one of a newer format.
    """
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        raise refusal(folder, expected="the folder of an archive", got="none")
    if not path.is_file():
        raise refusal(folder, expected=f"an archive with a {MANIFEST_NAME}", got="none: unfinished, or no archive")
    fields = read_json_object(path, what="manifest")
    if fields.get("format") != FORMAT_NAME:
        raise refusal(path, expected=f"the format {FORMAT_NAME}", got=shown(fields.get("format")))
    version = fields.get("version")
    if type(version) is not int or version < 1:
        raise refusal(path, expected="a version number", got=shown(version))
    if version > FORMAT_VERSION:
        raise refusal(path, expected=f"version {FORMAT_VERSION} or older", got=str(version), hint="update Mila")
    if fields.keys() != _FIELDS:
        raise refusal(path, expected=f"the fields {shown(sorted(_FIELDS))}", got=shown(sorted(fields)))
    sequence = fields["sequence"]
    if sequence is not None and (type(sequence) is not int or sequence < 0):
        raise refusal(path, expected="a sequence number or null", got=shown(sequence))
    return Manifest(_mode(fields["mode"], path), sequence, _records(fields["files"], path))


def _mode(value: object, path: Path) -> ArchiveMode:
    for mode in ArchiveMode:
        if mode.value == value:
            return mode
    raise refusal(path, expected=f"a mode of {shown([mode.value for mode in ArchiveMode])}", got=shown(value))


def _records(value: object, path: Path) -> dict[str, FileRecord]:
    if not isinstance(value, dict):
        raise refusal(path, expected="an object of files", got=shown(value))
    records = {}
    for name, record in value.items():
        if not all(is_segment(segment) for segment in name.split("/")):
            raise refusal(path, expected="files inside the archive", got=shown(name))
        if not isinstance(record, dict) or record.keys() != {"bytes", "sha256"}:
            raise refusal(path, expected=f"bytes and sha256 of {shown(name)}", got=shown(record))
        size, sha256 = record["bytes"], record["sha256"]
        if type(size) is not int or size < 0:
            raise refusal(path, expected=f"a size of {shown(name)}", got=shown(size))
        if not isinstance(sha256, str) or _SHA256.fullmatch(sha256) is None:
            raise refusal(path, expected=f"a SHA-256 of {shown(name)}", got=shown(sha256))
        records[name] = FileRecord(size, sha256)
    return records


def _check_storable(value: object, path: Path | str) -> None:
    pending: list[object] = [value]
    budget = LARGEST_JSON_FILE
    while pending:
        current = pending.pop()
        budget -= 1
        if budget < 0:
            raise refusal(path, expected="a value that ends", got="one that holds itself")
        if isinstance(current, dict):
            for key in current:
                if not isinstance(key, str):
                    raise refusal(path, expected="keys that are strings", got=shown(key))
            pending.extend(current.values())
        elif isinstance(current, list | tuple):
            pending.extend(current)
        elif current is not None and type(current) not in (bool, int, float, str):
            raise refusal(path, expected="values that JSON can hold", got=type(current).__name__)
