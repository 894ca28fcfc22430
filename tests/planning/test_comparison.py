"""``mila.planning.compare``: every difference is named and measured, and nothing else is."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.errors import CheckpointError, ConfigurationError
from mila.planning import ComparisonReport, compare
from mila.planning.comparison_report import TensorComparison, TensorOutcome
from mila.planning.stored_content import TILE_BYTES
from mila.serialization import save_tensors
from tests.gguf.gguf_bytes import Raw, gguf_bytes
from tests.models.clip_cases import CLIP_GOLDEN
from tests.models.folder_cases import GOLDEN
from tests.planning.stored_files import BFLOAT16, CHANGES, change_config, golden_folder, random_array, write, write_raw
from tests.serialization.safetensors_bytes import entry, file_bytes

SAME = {"format": "np"}


def compared(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **options: Any) -> ComparisonReport:
    """Two files with these tensors."""
    return compare(write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b), **options)


def only(report: ComparisonReport) -> TensorComparison:
    (found,) = report.tensors
    return found


# ---------------------------------------------------------------------- tensors


def test_equal_files_are_the_same(tmp_path: Path) -> None:
    tensors = {
        "w": random_array(30, 40),
        "nothing": np.empty((0, 3)),
        "scalar": np.float32(1),
        "n": np.array([np.nan], np.float16),
    }
    report = compared(tmp_path, tensors, dict(reversed(tensors.items())))
    assert (report.same, report.counts, report.tensors) == (True, {TensorOutcome.IDENTICAL: 4}, [])


def test_names_shapes_and_dtypes_that_differ_are_said(tmp_path: Path) -> None:
    a = {"both": np.ones(3), "left": np.ones(2), "shape": np.ones((2, 3)), "kind": np.ones(3, np.float32)}
    b = {"both": np.ones(3), "right": np.ones(2), "shape": np.ones((3, 2)), "kind": np.ones(3, np.int32)}
    report = compared(tmp_path, a, b)
    assert {row.name: row.outcome for row in report.tensors} == {
        "left": TensorOutcome.ONLY_IN_A,
        "right": TensorOutcome.ONLY_IN_B,
        "shape": TensorOutcome.OTHER_SHAPE,
        "kind": TensorOutcome.OTHER_DTYPE,
    }
    assert {row.name: row.reason for row in report.tensors}[
        "kind"
    ] == "float32 and int32 are different kinds of numbers"
    assert not report.same


@pytest.mark.parametrize("narrow", [BFLOAT16, np.dtype(np.float16)], ids=str)
def test_values_are_compared_across_dtypes_exactly(tmp_path: Path, narrow: np.dtype[Any]) -> None:
    short = random_array(300, 500).astype(narrow)
    exact = short.astype(np.float32)
    row = only(report := compared(tmp_path, {"w": short}, {"w": exact}))
    assert (row.outcome, report.same) == (TensorOutcome.SAME_VALUES, True)
    exact[299, 499] = np.nextafter(exact[299, 499], np.float32(9))
    row = only(report := compared(tmp_path, {"w": short}, {"w": exact}))
    assert (row.outcome, report.same) == (TensorOutcome.DIFFERENT, False)
    assert row.values is not None
    assert (row.values.differing, row.values.compared) == (1, 150_000)
    assert row.values.largest_absolute == abs(float(exact[299, 499]) - float(short[299, 499]))


def test_differences_are_measured(tmp_path: Path) -> None:
    a = random_array(400, 700)
    b = a.copy()
    b[0, 0], b[200, 3], b[399, 699] = a[0, 0] + 0.5, -a[200, 3], a[399, 699] * np.float32(1.001)
    row = only(compared(tmp_path, {"w": a}, {"w": b}))
    apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    sizes = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    assert row.values is not None
    assert row.values.differing == 3
    assert row.values.largest_absolute == apart.max()
    assert row.values.largest_relative == (apart / sizes).max()


def test_nan_equals_nan_and_infinities_are_themselves(tmp_path: Path) -> None:
    nan = np.frombuffer(np.array([0x7FC00000, 0xFFC00001], np.uint32).tobytes(), np.float32)
    a = np.array([nan[0], 1, np.inf, np.inf, np.nan, 0.0], np.float32)
    b = np.array([nan[1], 1, np.inf, -np.inf, 5.0, -0.0], np.float32)
    row = only(compared(tmp_path, {"w": a}, {"w": b}))
    assert row.values is not None
    assert (row.values.differing, row.values.nan_in_one, row.values.beyond_tolerance) == (2, 1, 2)
    assert row.values.infinite == 1
    assert (row.values.largest_absolute, row.values.largest_relative) == (None, None)
    row = only(report := compared(tmp_path, {"w": a[[0, 5]]}, {"w": b[[0, 5]]}))
    assert (row.outcome, report.same) == (TensorOutcome.SAME_VALUES, True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_every_value_that_differs_is_measured_or_counted(tmp_path: Path, dtype: Any) -> None:
    """Finite ones are measured; counted are NaN on one side, and without NaN infinity on one side or of both signs."""
    special = np.array([0, 1, np.inf, -np.inf, np.nan], dtype)
    a, b = (each.ravel() for each in np.meshgrid(special, special))
    row = only(compared(tmp_path, {"w": a}, {"w": b}))
    assert row.values is not None
    assert (row.values.differing, row.values.nan_in_one, row.values.infinite) == (20, 8, 10)
    assert (row.values.largest_absolute, row.values.largest_relative) == (1.0, 1.0)
    row = only(compared(tmp_path, {"w": special[[2]]}, {"w": special[[1]]}, tolerance=1e9))
    assert row.values is not None
    assert (row.outcome, row.values.infinite) == (TensorOutcome.DIFFERENT, 1)


@pytest.mark.parametrize(("tolerance", "beyond"), [(0.0, 3), (0.25, 1), (1.0, 0)])
def test_a_tolerance_allows_differences(tmp_path: Path, tolerance: float, beyond: int) -> None:
    a = np.zeros(10)
    b = np.array([0.25, -0.25, 1.0, *[0.0] * 7])
    row = only(report := compared(tmp_path, {"w": a}, {"w": b}, tolerance=tolerance))
    assert row.values is not None
    assert (row.values.differing, row.values.beyond_tolerance, report.same) == (3, beyond, beyond == 0)
    assert row.outcome is (TensorOutcome.DIFFERENT if beyond else TensorOutcome.WITHIN_TOLERANCE)


@pytest.mark.parametrize(
    ("a", "b", "largest"),
    [
        (np.array([2**62], np.int64), np.array([2**62 + 1], np.int64), 1.0),
        (np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64), float(2**64 - 1)),
        (np.array([3, 250], np.uint8), np.array([3, -6], np.int16), 256.0),
        (np.array([2**64 - 1], np.uint64), np.array([1], np.uint64), float(2**64 - 2)),
        (np.array([True, False]), np.array([False, False]), 1.0),
        (np.array([1 + 1j], np.complex64), np.array([1 - 1j], np.complex64), 2.0),
    ],
)
def test_integers_and_complex_numbers_are_compared_as_they_are(tmp_path: Path, a: Any, b: Any, largest: float) -> None:
    row = only(compared(tmp_path, {"w": a}, {"w": b}))
    assert row.values is not None
    assert (row.values.differing, row.values.largest_absolute) == (1, largest)


def test_packed_elements_are_compared_by_their_bytes(tmp_path: Path) -> None:
    a = write_raw(tmp_path / "a.safetensors", {"w": ("F4", [6], b"\x12\x34\x56"), "s": ("F6_E2M3", [4], b"abc")})
    b = write_raw(tmp_path / "b.safetensors", {"w": ("F4", [6], b"\x12\x35\x57"), "s": ("F32", [4], bytes(16))})
    rows = {row.name: row for row in compare(a, b).tensors}
    values = rows["w"].values
    assert values is not None
    assert (values.unit, values.differing, values.compared) == ("bytes", 2, 3)
    assert rows["s"].outcome is TensorOutcome.OTHER_DTYPE


def test_aliases_are_resolved_on_both_sides(tmp_path: Path) -> None:
    table = random_array(20, 4)
    a, b, c = (tmp_path / f"{name}.safetensors" for name in "abc")
    save_tensors(a, {"table": table, "head": table})
    write(b, {"table": table, "head": table})
    write(c, {"table": table, "head": table + 1})
    report = compare(a, b)
    assert (report.same, report.counts) == (True, {TensorOutcome.IDENTICAL: 2})
    row = only(compare(a, c))
    assert row.a is not None
    assert (row.name, row.outcome, row.a.stored_as) == ("head", TensorOutcome.DIFFERENT, "table")


def test_shards_are_compared_like_one_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    folder = GOLDEN / "llama_tied_llama3"
    tensors: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    whole = write(tmp_path / "whole.safetensors", tensors, {"format": "pt"})
    report = compare(folder, whole)
    assert (report.same, report.metadata, report.notes) == (True, [], ["only A has a config"])


def test_headers_alone_are_compared_where_that_is_asked_for(tmp_path: Path) -> None:
    report = compared(tmp_path, {"w": np.zeros(4)}, {"w": np.ones(4)}, values=False)
    assert (report.same, report.counts, report.values_compared) == (True, {TensorOutcome.SAME_HEADER: 1}, False)
    report = compared(tmp_path, {"w": np.zeros(4)}, {"w": np.zeros(4, np.float32)}, values=False)
    assert (report.same, only(report).reason) == (False, None)


def test_metadata_differs_without_a_difference(tmp_path: Path) -> None:
    a = write(tmp_path / "a.safetensors", {"w": np.ones(2)}, {"format": "pt", "step": "1"})
    b = write(tmp_path / "b.safetensors", {"w": np.ones(2)}, {"format": "np"})
    report = compare(a, b)
    assert report.same
    assert {(each.field, each.a, each.b) for each in report.metadata} == {
        ("format", '"pt"', '"np"'),
        ("step", '"1"', None),
    }


def test_names_with_something_before_them_are_noted(tmp_path: Path) -> None:
    report = compared(tmp_path, {"m.x.w": np.ones(2), "m.y": np.ones(2)}, {"x.w": np.ones(2), "y": np.ones(2)})
    assert report.notes == ["all names of B are in A with 'm.' before them"]


def test_gguf_files_are_compared_by_their_own_names(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.safetensors"
    plain = random_array(3, 32)
    blocks = bytes(range(36))
    a.write_bytes(gguf_bytes({"x": 1}, {"plain": plain, "blocks": Raw(2, (1, 64), blocks)}))
    b.write_bytes(gguf_bytes({"x": 2}, {"plain": plain.astype("<f2"), "blocks": Raw(2, (1, 64), blocks[:-1] + b"!")}))
    write(c, {"plain": plain, "blocks": np.ones((1, 64), np.float32)})
    rows = {row.name: row for row in compare(a, b).tensors}
    assert rows["plain"].outcome is TensorOutcome.DIFFERENT
    values = rows["blocks"].values
    assert values is not None
    assert (values.unit, values.differing, values.compared) == ("blocks", 1, 2)
    report = compare(a, c)
    assert (only(report).name, only(report).outcome) == ("blocks", TensorOutcome.OTHER_DTYPE)
    assert "by their bytes" in (only(report).reason or "")
    assert report.notes == ["GGUF files have names of their own: tensors are compared by name only"]


# ---------------------------------------------------------------------- configs


def test_configs_differ_by_what_they_mean(tmp_path: Path) -> None:
    a = golden_folder("llama_grouped", tmp_path)
    b = Path(shutil.copytree(a, tmp_path / "other"))
    change_config(b, transformers_version="0.1")
    report = compare(a, b)
    assert (report.same, report.effective_config) == (True, [])
    assert [(each.field, each.counts) for each in report.config] == [("transformers_version", False)]
    change_config(b, num_key_value_heads=..., rms_norm_eps=1e-4)
    report = compare(a / "config.json", b / "config.json")
    assert [(each.field, each.a, each.b) for each in report.effective_config or []] == [
        ("num_kv_heads", "1", "2"),
        ("norm_epsilon", "1e-06", "0.0001"),
    ]
    assert [(each.field, each.counts) for each in report.config] == [
        ("num_key_value_heads", True),
        ("rms_norm_eps", True),
        ("transformers_version", False),
    ]
    assert not report.same


def test_a_default_that_is_spelled_out_is_none(tmp_path: Path) -> None:
    folder = golden_folder("gpt2_tied", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for name, value in (("a", {}), ("b", {"n_inner": 4 * config["n_embd"], "scale_attn_weights": True})):
        (tmp_path / f"{name}.json").write_text(json.dumps(config | value))
    report = compare(tmp_path / "a.json", tmp_path / "b.json")
    assert (report.same, report.effective_config, report.counts) == (True, [], {})
    assert {each.field for each in report.config} >= {"n_inner"}


def test_configs_that_mila_does_not_have_are_compared_field_by_field(tmp_path: Path) -> None:
    for name, config in (("a", {"model_type": "bert", "x": {"y": 1}}), ("b", {"model_type": "bert", "x": {"y": 2}})):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    report = compare(tmp_path / "a.json", tmp_path / "b.json")
    assert (report.same, report.effective_config) == (False, None)
    assert [(each.field, each.a, each.b) for each in report.config] == [("x.y", "1", "2")]
    assert [note.partition(": ")[0][-4:] for note in report.notes] == ["of A", "of B"]
    assert compare(tmp_path / "a.json", tmp_path / "a.json").notes == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hidden_size": -1}, "hidden_size"),
        ({"model_type": "bert"}, "expected one of the model types .*, got 'bert'"),
        ({"model_type": ...}, "model_type.*expected one of the model types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_side_whose_config_is_not_understood_is_told(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    a = golden_folder("llama_grouped", tmp_path)
    b = Path(shutil.copytree(a, tmp_path / "other"))
    change_config(b, **fields)
    for sides, letter in (((a, b), "B"), ((b, a), "A")):
        for first, second in (sides, [each / "config.json" for each in sides]):
            report = compare(first, second)
            (note,) = report.notes
            file = re.escape(str(b / "config.json"))
            said = rf"^what the configs mean to Mila was not compared, because of {letter}: {file}: .*{reason}"
            assert re.match(said, note), note
            assert (report.same, report.effective_config) == (False, None)


def test_configs_of_text_encoders_are_compared_in_what_they_mean(tmp_path: Path) -> None:
    raw = json.loads((CLIP_GOLDEN / "projected" / "config.json").read_text())
    for name, eps in (("a", 1e-5), ("b", 1e-4)):
        (tmp_path / f"{name}.json").write_text(json.dumps(raw | {"layer_norm_eps": eps}))
    report = compare(tmp_path / "a.json", tmp_path / "b.json")
    assert [(each.field, each.a, each.b) for each in report.effective_config or []] == [
        ("norm_epsilon", "1e-05", "0.0001")
    ]


def test_only_configs_are_compared_where_one_side_is_a_config() -> None:
    folder = GOLDEN / "gpt2_tied"
    for sides in ((folder, folder / "config.json"), (folder / "config.json", folder)):
        report = compare(*sides)
        assert (report.same, report.metadata, report.counts) == (True, [], {})
        assert report.notes == ["only the configs were compared: one side is a config"]


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", {"w": np.ones(2)})
    config = GOLDEN / "gpt2_tied" / "config.json"
    with pytest.raises(ConfigurationError, match="expected a config to compare, got none in the safetensors"):
        compare(file, config)
    for tolerance in (-1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ConfigurationError, match="tolerance: expected a finite number"):
            compare(file, file, tolerance=tolerance)  # type: ignore[arg-type]
    (tmp_path / "bad.safetensors").write_bytes(b"\0" * 7)
    with pytest.raises(CheckpointError, match=r"bad\.safetensors: expected at least 8 bytes"):
        compare(file, tmp_path / "bad.safetensors")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", "ab")
def test_a_file_that_changes_while_it_is_read_is_one_error(
    tmp_path: Path, change: Callable[[Path], None], side: str
) -> None:
    a = write(tmp_path / "a.safetensors", {"w": random_array(1 << 19)})
    b = Path(shutil.copy(a, tmp_path / "b.safetensors"))
    with pytest.raises(CheckpointError, match=rf"{side}\.safetensors: expected .* (truncated|changed)"):
        compare(a, b, on_progress=lambda done, total: change(tmp_path / f"{side}.safetensors"))


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    peaks = []
    for elements in (1 << 20, 1 << 22):
        paths = [tmp_path / f"{elements}_{name}.safetensors" for name in "ab"]
        for number, path in enumerate(paths):
            values = np.arange(number, elements + number, dtype=np.float32)
            path.write_bytes(file_bytes({"w": entry("F32", [elements], 0, 4 * elements)}, values.tobytes()))
        tracemalloc.start()
        try:
            assert only(compare(*paths)).values is not None
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 16)
    assert peaks[1] < 8 * TILE_BYTES


def test_progress_ends_at_the_number_of_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    tensors = {"w": random_array(1 << 18), "v": random_array(3)}
    compared(tmp_path, tensors, tensors, on_progress=lambda done, total: seen.append((done, total)))
    size = 2 * ((1 << 20) + 12)
    assert seen[-1] == (size, size)
    tied = tmp_path / "tied.safetensors"
    save_tensors(tied, {"w": tensors["w"], "again": tensors["w"]})
    compare(tied, tied, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1 << 21, 1 << 21), "every pair of stored tensors is read once"
