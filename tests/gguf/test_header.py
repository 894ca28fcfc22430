"""Malformed and hostile files: one error that names the file and the fault, and no memory of the size they claim."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import CheckpointError
from mila.models.gguf_import import import_gguf
from mila.models.gguf_import.ggml_types import GGML_TYPES
from mila.models.gguf_import.header import parse_header
from tests.gguf.gguf_bytes import Raw, Typed, gguf_bytes, pairs_bytes, text_bytes
from tests.gguf.tiny_models import file_bytes, rotary_model

ONE = np.ones((2, 32), "<f4")
HUGE = 1 << 60


def start(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def record(name: str, extents: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A tensor's record with extents in the file's order."""
    shape = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
    return text_bytes(name) + shape + struct.pack("<IQ", kind, offset)


FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "starts with the bytes GGUF"),
    "short": (b"GGU", "starts with the bytes GGUF"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    "HTML": (b"<!DOCTYPE html><html>", "HTML"),
    "magic alone": (b"GGUF", "truncated"),
    "version 1": (start(0, 0, 1), "version 2 or 3"),
    "version 4": (start(0, 0, 4), "version 2 or 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "count of tensors": (start(HUGE, 0), "at most 0 tensors"),
    "count of pairs": (start(0, HUGE), "at most 0 pairs"),
    "length of a key": (start(0, 1) + struct.pack("<Q", HUGE) + b"k" * 20, "at most the 20 bytes left"),
    "length of a text": (start(0, 1) + text_bytes("key") + struct.pack("<IQ", 8, HUGE), "truncated"),
    "length of an array": (start(0, 1) + text_bytes("key") + struct.pack("<IIQ", 9, 5, HUGE), "at most 0 numbers"),
    "length of texts": (start(0, 1) + text_bytes("key") + struct.pack("<IIQ", 9, 8, HUGE), "at most 0 strings"),
    "array of arrays": (start(0, 1) + text_bytes("key") + struct.pack("<IIQ", 9, 9, 1), "an array of arrays"),
    "type of a value": (start(0, 1) + text_bytes("key") + struct.pack("<IQ", 13, 0), "type 13"),
    "truth value": (start(0, 1) + text_bytes("key") + struct.pack("<IB", 7, 2), "0 or 1, got 2"),
    "key not UTF-8": (start(0, 1) + text_bytes(b"\xff") + struct.pack("<IB", 7, 1), "UTF-8"),
    "key twice": (start(0, 2) + 2 * pairs_bytes({"one.key": 1}), "'one.key'"),
    "alignment": (gguf_bytes({"general.alignment": 24}, {}), "power of two"),
    "alignment 0": (gguf_bytes({"general.alignment": 0}, {}), "power of two"),
    "name twice": (gguf_bytes({}, [("a", ONE), ("a", ONE)]), "occurs once"),
    "rank 0": (start(1, 0) + record("a", (), 0, 0) + b"\0" * 32, "1 to 4 extents"),
    "rank": (start(1, 0) + text_bytes("a") + struct.pack("<I", 1 << 31) + b"\0" * 64, "1 to 4 extents"),
    "extent 0": (gguf_bytes({}, {"a": Raw(0, (0, 4), b"")}), "at least 1"),
    "size": (gguf_bytes({}, {"a": Raw(0, (1 << 40, 1 << 40), b"")}), "below 2\\*\\*63"),
    "type of a tensor": (gguf_bytes({}, {"a": Raw(4, (32,), b"")}), "type 4"),
    "part of a block": (gguf_bytes({}, {"a": Raw(2, (2, 33), b"\0" * 64)}), "whole blocks of 32"),
    "offset unaligned": (gguf_bytes({}, {"a": Raw(0, (1,), b"\0" * 64, 4)}), "multiple of 32"),
    "offset beyond": (gguf_bytes({}, {"a": Raw(0, (1,), b"\0" * 64, 1 << 40)}), "within the"),
    "overlap": (gguf_bytes({}, [("a", ONE), ("b", Raw(0, (2, 32), ONE.tobytes(), 128))]), "overlap"),
    "data truncated": (gguf_bytes({}, {"a": ONE})[:-1], "incomplete download"),
    "header truncated": (gguf_bytes({"one": "two"}, {"a": ONE})[:60], "truncated"),
}


def test_wherever_a_download_was_cut_it_is_called_incomplete(tmp_path: Path) -> None:
    path, content = tmp_path / "model.gguf", gguf_bytes({"one": ["two", "three"], "four": 5}, {"a": ONE, "b": ONE})
    for length in range(4, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"truncated, an incomplete download\?$"):
            import_gguf(path, tmp_path / "out")


@pytest.mark.parametrize("name", FAULTS)
def test_a_malformed_file_is_one_error(name: str, tmp_path: Path) -> None:
    content, message = FAULTS[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message) as caught:
        import_gguf(path, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert peak < 1 << 20
    assert sorted(tmp_path.iterdir()) == [path]


def test_any_truncation_and_any_byte_gives_the_one_error_or_a_header(tmp_path: Path) -> None:
    """Mutations of every byte of a header, and cuts at every place, raise nothing but the one error."""
    metadata = {"a": 1, "b": "text", "c": ["x", "yz"], "d": np.arange(3, dtype="<i4"), "e": 0.5, "f": True}
    content = gguf_bytes(metadata, {"one": ONE, "two": np.ones(4, "<f2")})
    mutations = [content[:length] for length in range(len(content))]
    for place in range(len(content) - ONE.nbytes):
        mutations += [content[:place] + bytes([value]) + content[place + 1 :] for value in (0, 1, 0x7F, 0xFF)]
    refused = 0
    for mutation in mutations:
        try:
            parse_header(io.BytesIO(mutation), len(mutation), tmp_path)
        except CheckpointError:
            refused += 1
    assert refused > len(mutations) // 2


def test_a_mutated_model_is_imported_or_is_the_one_error(tmp_path: Path) -> None:
    """Single bytes of metadata and records changed at random: whatever the change means, no other exception."""
    content = file_bytes(rotary_model())
    header_length = content.index(b"output_norm.weight")
    path = tmp_path / "model.gguf"
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(120):
        mutation = bytearray(content)
        mutation[random.integers(24, header_length)] = random.choice([0, 1, 8, 32, 127, 255])
        path.write_bytes(mutation)
        try:
            import_gguf(path, tmp_path / "out")
        except CheckpointError as error:
            assert str(error).startswith(str(path))
            refused += 1
    assert refused > 60


@pytest.mark.parametrize("fault", ["missing", "folder", "nul"])
def test_what_is_no_file_is_one_error(fault: str, tmp_path: Path) -> None:
    path = {"missing": tmp_path / "none.gguf", "folder": tmp_path, "nul": tmp_path / "a\0b"}[fault]
    with pytest.raises(CheckpointError):
        import_gguf(path, tmp_path / "out")


def test_values_keep_their_type_and_floats_their_shortest_decimal(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"epsilon": 1e-5, "wide": Typed("f8", 0.1), "count": Typed("u8", 1 << 40), "yes": True}
    metadata |= {"minus": Typed("i2", -3), "list": ["a", "ü"], "numbers": np.array([1.5, 2.5], "<f4")}
    content = gguf_bytes(metadata, {"w": np.arange(6, dtype="<f4").reshape(2, 3)}, alignment=32)
    header = parse_header(io.BytesIO(content), len(content), tmp_path)
    assert {key: header.metadata[key] for key in metadata if key != "numbers"} == {
        "epsilon": 1e-05,
        "wide": 0.1,
        "count": 1 << 40,
        "yes": True,
        "minus": -3,
        "list": ["a", "ü"],
    }
    assert np.array_equal(np.asarray(header.metadata["numbers"]), [1.5, 2.5])
    tensor = header.tensors["w"]
    assert (tensor.shape, tensor.nbytes, tensor.begin) == ((2, 3), 24, len(content) - 32)


def test_version_2_and_another_alignment_are_read(tmp_path: Path) -> None:
    content = gguf_bytes({"general.alignment": 256}, {"a": ONE, "b": ONE}, version=2, alignment=256)
    header = parse_header(io.BytesIO(content), len(content), tmp_path)
    assert [tensor.begin % 256 for tensor in header.tensors.values()] == [0, 0]


def test_a_file_that_shrinks_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file_bytes(rotary_model()))

    def truncate(done: int, total: int) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)

    with pytest.raises(CheckpointError, match=r"truncated since|changed or was replaced"):
        import_gguf(path, tmp_path / "out", on_progress=truncate)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parity
def test_sizes_of_blocks_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {kind.number: (kind.name, kind.block_elements, kind.block_bytes) for kind in GGML_TYPES.values()}
    assert {number: ours[number] for number in theirs if number in ours} == {
        number: theirs[number] for number in theirs if number in ours
    }
    assert len(ours.keys() & theirs.keys()) >= 32
