"""However a file is damaged, reading gives tensors or a `CheckpointError`, and takes no more memory than the file."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mila.errors import CheckpointError
from mila.serialization import FORMAT_DTYPES, SafetensorsFile
from tests.serialization.safetensors_bytes import entry, file_bytes

SEEDS = (
    file_bytes({"a": entry("F32", [3, 2], 0, 24), "b": entry("BF16", [], 24, 26)}, bytes(range(26))),
    file_bytes({"__metadata__": {"format": "np", "é": ""}, "a": entry("U8", [0, 7], 0, 0)}),
    file_bytes(
        {
            "model.layers.0.weight": entry("F16", [2, 2, 2], 3, 19),
            "x": entry("BOOL", [3], 0, 3),
            "y": entry("F4", [4], 19, 21),
            "z": entry("I64", [1], 21, 29),
        },
        bytes(3) + bytes(range(26)),
    ),
    file_bytes(
        {"__metadata__": {"mila.aliases": '{"head":"wte"}'}, "wte": entry("F8_E4M3", [4], 0, 4)}, b"\x7f\xff\0\1"
    ),
    file_bytes("{}      "),
)
FRAGMENTS = (
    b'"a":', b"{", b"}", b"[", b"]", b",", b"\0", b"\xff", b'"', b"\\ud800", b"-1", b"-0", b"1e400", b"NaN", b"true",
    b"null", b"99999999999999999999", b"18446744073709551615", b"9223372036854775808", b'"F32"', b'"F6_E3M2"',
    b'"__metadata__":{"k":"v"},', b" ", b"[[[[[[[[", b'{"a":' * 8, b'"\\u0061":',
)  # fmt: skip
FIXED_BYTES = 64_000
BYTES_OF_OBJECTS_FOR_EACH_BYTE_OF_HEADER = 48


def damaged_file(generator: Random) -> bytes:
    """Flip bits, cut, insert, overwrite and repeat parts of a valid file; half of the time, keep the length right."""
    content = bytearray(generator.choice(SEEDS))
    for _ in range(generator.randint(1, 3)):
        if not content:
            break
        place = generator.randrange(len(content))
        kind = generator.randrange(6)
        if kind == 0:
            content[place] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del content[place:]
        elif kind == 2:
            content[place:place] = generator.choice(FRAGMENTS)
        elif kind == 3:
            fragment = generator.choice(FRAGMENTS)
            content[place : place + len(fragment)] = fragment
        elif kind == 4:
            del content[place : place + generator.randint(1, 40)]
        else:
            content[place:place] = content[place : place + generator.randint(1, 80)]
    if generator.random() < 0.5 and len(content) >= 8:
        brace = content.rfind(b"}")
        content[:8] = max(0, brace - 7).to_bytes(8, "little")
    return bytes(content)


def damaged_files(count: int) -> Iterator[bytes]:
    """Yield ``count`` files, no two alike, the same ones every time."""
    generator = Random(1)
    found: set[bytes] = set()
    while len(found) < count:
        content = damaged_file(generator)
        if content not in found:
            found.add(content)
            yield content


def read_everything(path: Path) -> int:
    """Read all tensors of a file in both ways; return how many there were."""
    with SafetensorsFile(path) as file:
        for name, each in file.tensors.items():
            dtype = FORMAT_DTYPES[each.dtype_name].numpy_dtype
            if dtype is None:
                continue
            view = file.read(name)
            assert view.shape == each.shape
            assert view.dtype == dtype
            assert view.nbytes == each.nbytes
            expected = view.tobytes()
            del view
            target = np.empty(each.shape, dtype)
            file.copy_into(name, target)
            assert target.tobytes() == expected
        return len(file.tensors)


@pytest.mark.parametrize("content", SEEDS)
def test_the_seeds_are_valid(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "seed.safetensors"
    path.write_bytes(content)
    read_everything(path)


def test_damage_gives_a_result_or_a_refusal_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    tracemalloc.start()
    try:
        for content in damaged_files(10_000):
            path.write_bytes(content)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                read_everything(path)
            except CheckpointError as error:
                assert str(path) in str(error), content
                assert "\n" not in str(error), content
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak <= len(content) + BYTES_OF_OBJECTS_FOR_EACH_BYTE_OF_HEADER * len(content) + FIXED_BYTES, content
    finally:
        tracemalloc.stop()


HOSTILE_HEADERS = {
    "empty lists": '{"a":[' + ",".join(["[]"] * 100_000) + "]}",
    "empty objects": '{"a":[' + ",".join(["{}"] * 100_000) + "]}",
    "numbers": '{"a":[' + ",".join(["1000"] * 100_000) + "]}",
    "empty tensors": "{"
    + ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(10_000))
    + "}",
    "one long name": '{"' + "n" * 1_000_000 + '":0}',
    "one long name beyond ASCII": '{"' + "😀" * 100_000 + '":0}',
    "escapes": '{"' + "\\u0061" * 100_000 + '":0}',
    "spaces": " " * 1_000_000 + "{}",
    "deep": '{"a":' * 200_000,
    "impossible size": '{"a":{"dtype":"F64","shape":[4294967295,4294967295],"data_offsets":[0,8]}}',
}


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS.keys())
def test_a_hostile_header_takes_memory_in_proportion_to_itself(tmp_path: Path, header: str) -> None:
    path = tmp_path / "hostile.safetensors"
    content = file_bytes(header)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read_everything(path)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= BYTES_OF_OBJECTS_FOR_EACH_BYTE_OF_HEADER * len(content) + FIXED_BYTES


def test_the_data_of_a_large_file_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    size = 1 << 30
    header = json.dumps({"a": entry("F32", [size // 4], 0, size)})
    path.write_bytes(file_bytes(header.ljust(80)))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + size)
    tracemalloc.start()
    try:
        with SafetensorsFile(path) as opened:
            assert opened.read("a").nbytes == size
            opened.copy_range_into("a", size // 4 - 3, np.empty(3, np.float32))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < FIXED_BYTES
