"""What is in these files, and is anything wrong with it?"""

from __future__ import annotations

import fnmatch
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.memory.format import format_bytes
from mila.planning.inspection_report import (
    ContentKind,
    DtypeTotal,
    FileRow,
    Finding,
    FindingKind,
    InspectionReport,
    TensorRow,
    counted,
)
from mila.planning.loading_check import check_loading
from mila.planning.opening import open_content
from mila.planning.stored_content import TILE_BYTES, OpenFile, StoredContent, StoredTensor
from mila.planning.value_scan import ValueScan, scan
from mila.serialization.failures import shown

SORTS = ("file", "name", "bytes")
#: So many names stand in a message; all of them are in ``names``.
_MOST_NAMES = 3
#: Floats that mean something together with their scales only.
_NARROW = ("float8", "f4", "f6")
_SCALE_ENDINGS = ("_scale", "_scale_inv", "_scales", ".scale", ".scales")
_SCALES_OF_MODULES = ("scale", "scales", "scale_weight")
#: Of GGUF: after every tensor, the last one too, zeros up to a multiple of this many bytes; its reader checks it.
_ALIGNMENT, _DEFAULT_ALIGNMENT = "general.alignment", 32


def inspect(
    target: str | Path,
    *,
    names: str | None = None,
    sort: str = "file",
    check: bool = False,
    on_progress: Progress | None = None,
    on_header: Progress | None = None,
) -> InspectionReport:
    """Say what files hold: names, dtypes, shapes, exact bytes, tied names, metadata, and what is wrong.

    Args:
        target: a model folder, a ``config.json``, a safetensors file, an index, a GGUF file, an archive or a run folder
            of ``mila train``; ``hf://owner/name[@revision][/file]`` for a model of the hub or one of its files, of
            which only headers are read.
        names: tensors to list: a pattern with ``*``, ``?`` and ``[...]``, or a part of the name; aliases count.
        sort: the order of the list: ``file`` (as their bytes are stored), ``name``, or ``bytes``, most first.
        check: also read every value of the listed tensors, and compare files with their checksums, weights with their
            config and a config with what Mila has. A few megabytes of memory are taken, whatever the size of the files.
            Of the hub no values are read, and a note says what was not checked.
        on_progress: called with the bytes that were read, and with those to read.
        on_header: of a model of the hub, called with the headers of weights that were read, and with those to read.

    Raises:
        ConfigurationError: an argument that is none, a target that is no file of these kinds, or a hub that cannot be
            asked.
        CheckpointError: a malformed or incomplete file, or one that changes while it is read.
    """
    if sort not in SORTS:
        raise ConfigurationError(f"sort: expected one of {', '.join(SORTS)}, got {shown(sort)}")
    if names is not None and (not isinstance(names, str) or not names):
        raise ConfigurationError(f"names: expected a pattern such as '*.weight', got {shown(names)}")
    with open_content(target, on_header) as content:
        aliases = _aliases_of(content)
        selected = [each for each in content.tensors.values() if _matches(names, [each.name, *aliases[each.name]])]
        problems, notes = _findings_of_headers(content)
        if check:
            checked = _check_headers(content) if content.is_on_hub else _check(content, selected, on_progress)
            problems, notes = [*problems, *checked[0]], [*notes, *checked[1]]
        rows = [_row(each, aliases[each.name]) for each in selected]
        are_read = check and not (content.is_on_hub and content.tensors)
        return _report(content, names, _sorted(rows, sort), are_read, problems, notes)


def _aliases_of(content: StoredContent) -> defaultdict[str, list[str]]:
    aliases: defaultdict[str, list[str]] = defaultdict(list)
    for alias, name in content.aliases.items():
        aliases[name].append(alias)
    return aliases


def _matches(pattern: str | None, names: Iterable[str]) -> bool:
    if pattern is None:
        return True
    if not set(pattern) & set("*?["):
        return any(pattern in name for name in names)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _row(tensor: StoredTensor, aliases: list[str]) -> TensorRow:
    return TensorRow(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=list(tensor.shape),
        elements=tensor.element_count,
        bytes=tensor.nbytes,
        file=tensor.file,
        aliases=sorted(aliases),
    )


def _sorted(rows: list[TensorRow], sort: str) -> list[TensorRow]:
    if sort == "name":
        return sorted(rows, key=lambda row: row.name)
    return sorted(rows, key=lambda row: -row.bytes) if sort == "bytes" else rows


def _report(
    content: StoredContent,
    names: str | None,
    rows: list[TensorRow],
    checked: bool,
    problems: list[Finding],
    notes: list[Finding],
) -> InspectionReport:
    tensors = content.tensors.values()
    totals: dict[str, list[TensorRow]] = defaultdict(list)
    for row in rows:
        totals[row.dtype].append(row)
    by_dtype = [
        DtypeTotal(
            dtype=dtype,
            tensors=len(group),
            elements=sum(row.elements for row in group),
            bytes=sum(row.bytes for row in group),
        )
        for dtype, group in totals.items()
    ]
    in_file: dict[str, list[StoredTensor]] = defaultdict(list)
    for tensor in tensors:
        in_file[tensor.file].append(tensor)
    return InspectionReport(
        target=content.target,
        kind=content.kind,
        place=content.shown_place,
        files=[
            FileRow(
                name=name, bytes=size, tensors=len(in_file[name]), tensor_bytes=sum(t.nbytes for t in in_file[name])
            )
            for name, size in content.sizes.items()
        ],
        stored_tensors=len(tensors),
        stored_bytes=sum(tensor.nbytes for tensor in tensors),
        names=names,
        tensors=rows,
        totals=sorted(by_dtype, key=lambda total: (-total.bytes, total.dtype)),
        selected_elements=sum(row.elements for row in rows),
        selected_bytes=sum(row.bytes for row in rows),
        aliases=dict(content.aliases),
        metadata=dict(content.metadata),
        config=None if content.config is None else dict(content.config),
        checked=checked,
        problems=problems,
        notes=notes,
    )


# ---------------------------------------------------------------------- what headers tell


def _findings_of_headers(content: StoredContent) -> tuple[list[Finding], list[Finding]]:
    notes = [Finding(kind=FindingKind.TARGET, message=note) for note in content.notes]
    problems = [
        Finding(
            kind=FindingKind.NO_SCALE,
            message=f"{shown(tensor.name)}: {tensor.dtype} without a scale beside it: its bytes have no meaning",
            names=[tensor.name],
            bytes=tensor.nbytes,
        )
        for tensor in content.tensors.values()
        if _lacks_scale(tensor, content)
    ]
    if content.kind is ContentKind.GGUF:
        notes += _unclaimed(content)
    return problems, notes


def _lacks_scale(tensor: StoredTensor, content: StoredContent) -> bool:
    """Whether narrow floats have no tensor of scales, by any of the names that are in use."""
    name = tensor.name
    module, _, own = name.rpartition(".")
    if not tensor.dtype.startswith(_NARROW) or not tensor.nbytes or "scale" in own:
        return False
    if tensor.dtype == "float8_e8m0fnu":  # powers of two: scales themselves
        return False
    beside = [f"{module}.{scale}" for scale in _SCALES_OF_MODULES] if module and own == "weight" else []
    wanted = [*(name + ending for ending in _SCALE_ENDINGS), *beside]
    return not any(scale in content.tensors or scale in content.aliases for scale in wanted)


def _unclaimed(content: StoredContent) -> list[Finding]:
    """Bytes of a GGUF file behind all that its header describes and the padding of it."""
    (label, size), *_ = content.sizes.items()
    alignment = int(content.metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT))
    end = max((tensor.begin + tensor.nbytes for tensor in content.tensors.values()), default=size)
    more = size - -(-end // alignment) * alignment
    if more <= 0:
        return []
    message = f"{label}: {counted(more, 'byte')} behind the last tensor and its padding"
    return [Finding(kind=FindingKind.UNCLAIMED, message=message, bytes=more)]


# ---------------------------------------------------------------------- what values tell


def _check(
    content: StoredContent, selected: list[StoredTensor], on_progress: Progress | None
) -> tuple[list[Finding], list[Finding]]:
    """Read everything once."""
    manifest = content.manifest
    hashed = 0 if manifest is None else sum(record.size for record in manifest.files.values())
    meter = _Meter(hashed + sum(tensor.nbytes for tensor in selected), on_progress)
    problems = _checksums(content, meter.add)
    notes: list[Finding] = []
    scans: dict[str, ValueScan] = {}
    sizes = Counter(tensor.nbytes for tensor in selected)
    for tensor in selected:
        has_twin = tensor.nbytes > 0 and sizes[tensor.nbytes] > 1
        scans[tensor.name] = scan(content, tensor, with_digest=has_twin, on_read=meter.add)
    problems += [finding for tensor in selected for finding in _problems_of(tensor, scans[tensor.name])]
    notes += _unreadable(selected, scans)
    notes += _stored_twice(selected, scans)
    refused, said = check_loading(content)
    return [*problems, *refused], [*notes, *said]


def _check_headers(content: StoredContent) -> tuple[list[Finding], list[Finding]]:
    """What can be checked of a model of the hub, and what was not."""
    problems, notes = check_loading(content)
    if content.tensors:
        message = (
            "values on the hub are not read, nor is tokenizer.json: not checked were NaN and infinite values, truth "
            "values, tensors with the same bytes, a head that is stored beside the table it is tied to, and ids of the "
            "tokenizer; download the model and name its folder"
        )
        notes.append(Finding(kind=FindingKind.NOT_CHECKED, message=message, names=[*content.tensors]))
    return problems, notes


class _Meter:
    """Tells how much of how much was read."""

    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self._done, self._total, self._on_progress = 0, total, on_progress

    def add(self, size: int) -> None:
        self._done += size
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def _checksums(content: StoredContent, on_read: Callable[[int], None]) -> list[Finding]:
    """Every file of an archive against its manifest."""
    if content.manifest is None:
        return []
    problems = []
    for name, record in content.manifest.files.items():
        with OpenFile(content.place / name) as file:
            digest = hashlib.sha256()
            buffer = np.empty(min(TILE_BYTES, file.size), np.uint8)
            for offset in range(0, file.size, TILE_BYTES):
                piece = buffer[: file.size - offset]
                file.read_into(offset, piece)
                digest.update(piece.data)
                on_read(piece.size)
        if digest.hexdigest() != record.sha256:
            message = f"{name}: expected SHA-256 {record.sha256}, got {digest.hexdigest()}"
            problems.append(Finding(kind=FindingKind.CHECKSUM, message=message, names=[name], bytes=file.size))
    return problems


def _problems_of(tensor: StoredTensor, found: ValueScan) -> list[Finding]:
    problems = []
    count = found.nan + found.infinite
    if count:
        counts = " and ".join(
            f"{number:,} {word}" for number, word in ((found.nan, "NaN"), (found.infinite, "infinite")) if number
        )
        message = f"{shown(tensor.name)}: {counts} of {tensor.element_count:,} values"
        problems.append(Finding(kind=FindingKind.NON_FINITE, message=message, names=[tensor.name], count=count))
    if found.invalid_booleans:
        count = found.invalid_booleans
        message = f"{shown(tensor.name)}: {count:,} of {tensor.element_count:,} truth values are neither 0 nor 1"
        problems.append(Finding(kind=FindingKind.INVALID_BOOLEAN, message=message, names=[tensor.name], count=count))
    return problems


def _unreadable(selected: list[StoredTensor], scans: dict[str, ValueScan]) -> list[Finding]:
    """One note for every reason why values were not looked at."""
    reasons: dict[str, list[StoredTensor]] = defaultdict(list)
    for tensor in selected:
        reason = scans[tensor.name].unreadable
        if reason is not None:
            reasons[reason].append(tensor)
    return [
        Finding(
            kind=FindingKind.NOT_CHECKED,
            message=f"the values of {counted(len(tensors), 'tensor')} were not looked at: {reason}",
            names=[tensor.name for tensor in tensors],
            bytes=sum(tensor.nbytes for tensor in tensors),
        )
        for reason, tensors in reasons.items()
    ]


def _stored_twice(selected: list[StoredTensor], scans: dict[str, ValueScan]) -> list[Finding]:
    """One note for every group of tensors with the same bytes; those of one repeated value are no group."""
    groups: dict[tuple[int, bytes], list[StoredTensor]] = defaultdict(list)
    for tensor in selected:
        digest = scans[tensor.name].digest
        if digest is not None:
            groups[tensor.nbytes, digest].append(tensor)
    notes = []
    for (size, _), twins in groups.items():
        if len(twins) > 1:
            names = [tensor.name for tensor in twins]
            listed = ", ".join(shown(name) for name in names[:_MOST_NAMES])
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            wasted = size * (len(twins) - 1)
            message = f"{listed}{more} have the same bytes: {wasted:,} bytes ({format_bytes(wasted)}) are stored again"
            notes.append(Finding(kind=FindingKind.STORED_TWICE, message=message, names=names, bytes=wasted))
    return notes
