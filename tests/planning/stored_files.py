"""Files with tensors for the tests of inspections and comparisons, written by others than the code under test."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from mila.planning import InspectionReport, inspect
from mila.planning.inspection_report import Finding, FindingKind
from tests.models.folder_cases import GOLDEN
from tests.serialization.safetensors_bytes import entry, file_bytes

Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: A seed for every array that is not written out.
RANDOM = np.random.default_rng(7)


def write(path: Path, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> Path:
    """A safetensors file, as the package writes it."""
    arrays = {name: np.array(array, order="C") for name, array in tensors.items()}
    path.write_bytes(save(arrays, metadata))
    return path


def write_raw(path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]], **metadata: Any) -> Path:
    """A safetensors file of any dtypes: its name in the format, a shape and the bytes of every tensor."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = entry(dtype, shape, len(data), len(data) + len(content))
        data += content
    path.write_bytes(file_bytes(header, data))
    return path


def golden_folder(name: str, place: Path) -> Path:
    """A copy of one of the folders that ``transformers`` wrote."""
    return Path(shutil.copytree(GOLDEN / name, place / name))


def change_config(folder: Path, **fields: Any) -> None:
    """Set fields of a ``config.json``; those that are ``...`` go."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def truncate(path: Path) -> None:
    """As a full disk or another writer would."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def touch(path: Path) -> None:
    """Another time of the last change: the same bytes, as far as anybody knows."""
    os.utime(path, ns=(0, 0))


def replace(path: Path) -> None:
    """Another file of the same size in its place."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


CHANGES = (truncate, touch, replace)


def random_array(*shape: int, dtype: Any = np.float32) -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


def kinds(findings: list[Finding]) -> list[FindingKind]:
    return [each.kind for each in findings]


def messages(findings: list[Finding]) -> list[str]:
    return [each.message for each in findings]


def only(findings: list[Finding], kind: FindingKind) -> Finding:
    (found,) = (each for each in findings if each.kind is kind)
    return found


def checked(path: Path, **options: Any) -> InspectionReport:
    return inspect(path, check=True, **options)
