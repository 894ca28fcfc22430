"""Builds the bytes of safetensors files by hand, right or wrong, without the code under test."""

from __future__ import annotations

import json
from collections.abc import Mapping


def file_bytes(header: bytes | str | Mapping[str, object], data: bytes = b"", length: int | None = None) -> bytes:
    """Return a file of a header, given as bytes, text or what becomes JSON, and data; `length` tells a wrong length."""
    if isinstance(header, Mapping):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode("utf-8")
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(dtype: object, shape: object, begin: object, end: object) -> dict[str, object]:
    """Return the header's entry of one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def entry_text(dtype: str = '"F32"', shape: str = "[1]", offsets: str = "[0,4]") -> str:
    """Return the JSON of one entry from the JSON of its fields."""
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'
