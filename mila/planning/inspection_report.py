"""What an inspection says: the published form of ``mila inspect --json``, and of what goes wrong."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from mila.planning.report import Document


def counted(number: int, noun: str) -> str:
    """``1 tensor``, ``2,000 tensors``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class ContentKind(StrEnum):
    """What was named: a model folder, a ``config.json``, one of the formats, an archive of Mila, a model of the hub."""

    FOLDER = "folder"
    CONFIG = "config"
    SAFETENSORS = "safetensors"
    INDEX = "index"
    GGUF = "gguf"
    ARCHIVE = "archive"
    HUB = "hub"


class FindingKind(StrEnum):
    """What a problem or a note is about.

    Problems: ``non_finite`` (values that are NaN or infinite), ``invalid_boolean`` (truth values other than 0 and 1),
    ``no_scale`` (FP8 or FP4 without the scales that give the bytes a meaning), ``checksum`` (a file of an archive that
    is not the one that was written), ``not_loadable`` (what ``from_pretrained``, ``mila import`` or ``load_model``
    refuses; of a config by itself, what ``mila plan`` does).

    Notes: ``stored_twice`` (the same bytes under several names), ``unclaimed`` (bytes of a GGUF file that no tensor
    has), ``not_checked`` (what could not be looked at, and why), ``model`` (what loading would say), ``target`` (what
    was read).
    """

    NON_FINITE = "non_finite"
    INVALID_BOOLEAN = "invalid_boolean"
    NO_SCALE = "no_scale"
    CHECKSUM = "checksum"
    NOT_LOADABLE = "not_loadable"
    STORED_TWICE = "stored_twice"
    UNCLAIMED = "unclaimed"
    NOT_CHECKED = "not_checked"
    MODEL = "model"
    TARGET = "target"


class Finding(Document):
    """One problem or note.

    Attributes:
        kind: what it is about.
        message: for people.
        names: the tensors or files that it is about.
        count: how many elements, where it is about elements.
        bytes: how many bytes, where it is about bytes.
    """

    kind: FindingKind
    message: str
    names: list[str] = Field(default_factory=list)
    count: int | None = None
    bytes: int | None = None


class TensorRow(Document):
    """One stored tensor: ``bytes`` are exact, ``aliases`` the other names it goes by."""

    name: str
    dtype: str
    shape: list[int]
    elements: int
    bytes: int
    file: str
    aliases: list[str]


class FileRow(Document):
    """One file with tensors: all its bytes, and those of its tensors."""

    name: str
    bytes: int
    tensors: int
    tensor_bytes: int


class DtypeTotal(Document):
    """All selected tensors of one dtype."""

    dtype: str
    tensors: int
    elements: int
    bytes: int


class InspectionReport(Document):
    """What is in the files.

    Attributes:
        target: as it was named.
        kind: what that is.
        place: the file or folder that was read.
        files: those with tensors.
        stored_tensors: how many there are, aliases not among them.
        stored_bytes: theirs.
        names: the pattern that selected rows, where one did.
        tensors: the selected rows.
        totals: of the selected rows by dtype, most bytes first.
        selected_elements: of the selected rows.
        selected_bytes: of the selected rows.
        aliases: other names of stored tensors: ``{alias: name}``.
        metadata: what the writer noted; arrays of GGUF files are described, not repeated.
        config: the content of ``config.json``, where there is one.
        checked: whether values were read, where there are any.
        problems: what is wrong.
        notes: what is not wrong, but worth knowing.
    """

    event: Literal["inspection"] = "inspection"
    version: Literal[1] = 1
    target: str
    kind: ContentKind
    place: str
    files: list[FileRow]
    stored_tensors: int
    stored_bytes: int
    names: str | None
    tensors: list[TensorRow]
    totals: list[DtypeTotal]
    selected_elements: int
    selected_bytes: int
    aliases: dict[str, str]
    metadata: dict[str, str]
    config: dict[str, Any] | None
    checked: bool
    problems: list[Finding]
    notes: list[Finding]


class Refusal(Document):
    """Why there is neither an inspection nor a comparison; the exit code is that of the command."""

    event: Literal["error"] = "error"
    version: Literal[1] = 1
    targets: list[str]
    message: str
    exit_code: int
