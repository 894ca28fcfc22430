"""``mila.planning.inspect`` of GGUF files: their types, their blocks, and what is behind their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import CheckpointError
from mila.planning import inspect
from mila.planning.inspection_report import ContentKind, FindingKind
from tests.gguf.gguf_bytes import Raw, gguf_bytes
from tests.gguf.tiny_models import file_bytes, rotary_model
from tests.planning.stored_files import checked, kinds, only


def test_a_gguf_file_is_shown_with_its_types(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    metadata, tensors = rotary_model()
    blocks = Raw(2, (4, 64), bytes(4 * 2 * 18))
    path.write_bytes(gguf_bytes(metadata, {**tensors, "blocks": blocks}))
    report = inspect(path)
    rows = {row.name: row for row in report.tensors}
    assert report.kind is ContentKind.GGUF
    assert (rows["blocks"].dtype, rows["blocks"].bytes, rows["blocks"].elements) == ("q4_0", 144, 256)
    assert rows["token_embd.weight"].shape == list(tensors["token_embd.weight"].shape)
    assert report.metadata["general.architecture"] == "llama"
    assert report.metadata["tokenizer.ggml.tokens"] == "an array of 261 texts"
    assert report.metadata["tokenizer.ggml.add_bos_token"] == "false"


def test_a_cut_gguf_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file_bytes(rotary_model())[:-100])
    with pytest.raises(CheckpointError, match="incomplete download"):
        inspect(path)


def test_blocks_of_a_gguf_file_are_looked_at(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    scales = np.array([1, np.nan, np.inf, 0.5], "<f2")
    blocks = b"".join(scale.tobytes() + bytes([0x21] * 16) for scale in scales)
    path.write_bytes(gguf_bytes({}, {"blocks": Raw(2, (2, 64), blocks), "plain": np.array([1, np.nan], np.float32)}))
    found = {problem.names[0]: problem.count for problem in checked(path).problems}
    assert found == {"blocks": 64, "plain": 1}


def test_bytes_behind_the_tensors_of_a_gguf_file_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for more in (b"\0", b"behind", bytes(40), bytes(1 << 20)):
        path.write_bytes(file_bytes(rotary_model()) + more)
        assert only(inspect(path).notes, FindingKind.UNCLAIMED).bytes == len(more)


@pytest.mark.parametrize("alignment", [32, 256])
@pytest.mark.parametrize("writes_all", [False, True])
def test_what_pads_a_gguf_file_is_not_noted(tmp_path: Path, alignment: int, writes_all: bool) -> None:
    """As the package of the format writes it, padding behind the last tensor too, and cut off behind that tensor."""
    package: Any = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = package.GGUFWriter(path, "llama", use_temp_file=writes_all)
    writer.add_custom_alignment(alignment)
    for name, size in (("a", 3), ("b", 9)):
        writer.add_tensor(name, np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    padding = -36 % alignment
    content = path.read_bytes()
    assert len(content) % alignment == 0
    for written in (content, content[:-padding]):
        path.write_bytes(written)
        assert FindingKind.UNCLAIMED not in kinds(inspect(path).notes)
    path.write_bytes(content + b"\0")
    message = "model.gguf: 1 byte behind the last tensor and its padding"
    assert only(inspect(path).notes, FindingKind.UNCLAIMED).message == message
