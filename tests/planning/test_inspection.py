"""``mila.planning.inspect``: what is in files is said exactly, and what is wrong with it is found."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.errors import CheckpointError, ConfigurationError
from mila.planning import inspect, opening
from mila.planning.inspection_report import ContentKind, FindingKind
from mila.planning.stored_content import TILE_BYTES
from mila.serialization import save_tensors
from tests.gguf.tiny_models import file_bytes as gguf_file_bytes
from tests.gguf.tiny_models import rotary_model
from tests.models.folder_cases import GOLDEN
from tests.planning.stored_files import (
    BFLOAT16,
    CHANGES,
    change_config,
    checked,
    golden_folder,
    kinds,
    only,
    random_array,
    replace,
    write,
    write_raw,
)
from tests.serialization.safetensors_bytes import entry, file_bytes
from tests.serialization.test_safetensors_rejected import REJECTED

MIXED = {
    "wide": random_array(3, 5),
    "half": random_array(7, dtype=BFLOAT16),
    "ids": np.arange(4, dtype=np.int64),
    "flag": np.array([True, False, True]),
    "scalar": np.float64(2.5),
    "nothing": np.empty((0, 4), np.float32),
}


# ---------------------------------------------------------------------- what is shown


def test_a_file_is_described_to_the_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed.safetensors", MIXED, {"format": "np"})
    report = inspect(path)
    assert (report.kind, report.metadata, report.checked) == (ContentKind.SAFETENSORS, {"format": "np"}, False)
    rows = {row.name: row for row in report.tensors}
    assert rows.keys() == MIXED.keys()
    for name, array in MIXED.items():
        array = np.asarray(array)
        assert (rows[name].dtype, rows[name].shape) == (array.dtype.name, list(array.shape))
        assert (rows[name].bytes, rows[name].elements) == (array.nbytes, array.size)
        assert rows[name].file == "mixed.safetensors"
    assert report.stored_bytes == report.selected_bytes == sum(np.asarray(each).nbytes for each in MIXED.values())
    assert [(file.name, file.bytes, file.tensors) for file in report.files] == [(path.name, path.stat().st_size, 6)]
    assert {total.dtype: (total.tensors, total.bytes) for total in report.totals} == {
        "float32": (2, 60),
        "int64": (1, 32),
        "bfloat16": (1, 14),
        "float64": (1, 8),
        "bool": (1, 3),
    }
    assert [total.bytes for total in report.totals] == sorted((t.bytes for t in report.totals), reverse=True)
    assert checked(path).problems == []


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [("*i*", ["wide", "ids", "nothing"]), ("hal", ["half"]), ("[fs]*", ["scalar", "flag"]), ("zz*", [])],
)
def test_a_pattern_selects_rows_and_what_is_summed(tmp_path: Path, pattern: str, selected: list[str]) -> None:
    report = inspect(write(tmp_path / "mixed.safetensors", MIXED), names=pattern)
    assert sorted(row.name for row in report.tensors) == sorted(selected)
    assert report.selected_bytes == sum(np.asarray(MIXED[name]).nbytes for name in selected)
    assert report.stored_tensors == len(MIXED)


def test_a_pattern_selects_whose_values_are_checked_and_headers_are_checked_as_a_whole(tmp_path: Path) -> None:
    tensors = {"wide": np.array([np.nan], np.float32), "half": random_array(7), "more": np.array([np.inf], np.float32)}
    report = checked(write(tmp_path / "bad.safetensors", tensors), names="wide")
    assert [problem.names for problem in report.problems] == [["wide"]]
    folder = golden_folder("gpt2_tied", tmp_path)
    change_config(folder, n_inner=15)
    assert kinds(checked(folder, names="*.ln_1.*").problems) == [FindingKind.NOT_LOADABLE]


def test_rows_are_sorted(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed.safetensors", MIXED)
    by_name = [row.name for row in inspect(path, sort="name").tensors]
    by_bytes = [row.bytes for row in inspect(path, sort="bytes").tensors]
    assert by_name == sorted(MIXED)
    assert by_bytes == sorted(by_bytes, reverse=True)


@pytest.mark.parametrize(
    "folder", sorted(path for path in GOLDEN.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_folders_of_transformers_have_no_problems(folder: Path) -> None:
    report = checked(folder)
    assert (report.kind, report.problems) == (ContentKind.FOLDER, [])
    assert report.config == json.loads((folder / "config.json").read_text())
    assert sum(file.bytes for file in report.files) == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert {row.file for row in report.tensors} == {file.name for file in folder.glob("*.safetensors")}


def test_an_index_is_shown_like_its_folder() -> None:
    folder = GOLDEN / "llama_tied_llama3"
    whole, index = inspect(folder), inspect(folder / "model.safetensors.index.json")
    assert (index.kind, index.config) == (ContentKind.INDEX, None)
    assert (index.tensors, index.files) == (whole.tensors, whole.files)


def test_other_names_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "tied.safetensors"
    table = random_array(4, 2)
    save_tensors(path, {"table": table, "head": table})
    report = inspect(path, names="head")
    assert report.aliases == {"head": "table"}
    assert [(row.name, row.aliases) for row in report.tensors] == [("table", ["head"])]
    assert "mila.aliases" not in report.metadata


def test_a_config_is_shown_by_itself() -> None:
    path = GOLDEN / "gpt2_tied" / "config.json"
    report = checked(path)
    assert (report.kind, report.tensors, report.problems) == (ContentKind.CONFIG, [], [])
    assert report.config == json.loads(path.read_text())


def test_packed_elements_are_counted(tmp_path: Path) -> None:
    tensors = {"w": ("F4", [3, 2], b"\x12\x34\x56"), "w_scale": ("F8_E8M0", [1], b"\x7f")}
    report = checked(write_raw(tmp_path / "packed.safetensors", tensors))
    assert [(row.dtype, row.elements, row.bytes) for row in report.tensors] == [("f4", 6, 3), ("float8_e8m0fnu", 1, 1)]
    assert report.problems == []


# ---------------------------------------------------------------------- what is malformed


@pytest.mark.parametrize("fault", REJECTED)
def test_a_malformed_file_is_one_error(tmp_path: Path, fault: str) -> None:
    content, message = REJECTED[fault]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        inspect(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [cut, lengthen, remove])
def test_a_damaged_shard_is_one_error(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = golden_folder("llama_tied_llama3", tmp_path)
    damage(folder / "model-00002-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors"):
        inspect(folder)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("nothing", {}, "got nothing of that name"),
        ("preset:gpt2", {}, "^'preset:gpt2': expected a file or a folder, got a preset, which `mila plan` plans$"),
        ("gpt2", {}, "got nothing of that name; the preset of that name is for `mila plan`$"),
        ("preset:gtp2", {}, r"got no preset of that name; did you mean gpt2\b.*\? Presets are for `mila plan`$"),
        ("preset:zzzz", {}, "^'preset:zzzz': expected a file or a folder, got no preset of that name$"),
        ("gtp2", {}, r"got nothing of that name; did you mean gpt2\b.*\? Presets are for `mila plan`$"),
        ("meta-llama/Llama-3.1-8B", {}, "name; a model of the hub is hf://meta-llama/Llama-3.1-8B$"),
        ("https://huggingface.co/a/b/", {}, "name; a model of the hub is hf://a/b$"),
        ("gpt2/model.safetensors", {}, "got nothing of that name$"),
        ("model.safetensors", {}, "got nothing of that name$"),
        ("", {}, "expected the name of a file or a folder"),
        (7, {}, "expected the name of a file or a folder"),
        ("text.txt", {}, "got a file of another kind"),
        ("text.txt", {"sort": "size"}, "expected one of file, name, bytes"),
        ("text.txt", {"names": ""}, "expected a pattern"),
    ],
)
def test_wrong_arguments_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a text")
    with pytest.raises(ConfigurationError, match=message):
        inspect(target, **options)


def test_a_folder_without_weights_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_file_bytes(rotary_model()))
    with pytest.raises(CheckpointError, match=r"name the file: .*model\.gguf"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    report = inspect(tmp_path)
    assert (report.tensors, report.config) == ([], {"model_type": "gpt2"})
    assert only(report.notes, FindingKind.TARGET).message.startswith("neither model.safetensors nor its index")


# ---------------------------------------------------------------------- what values tell


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_planted_values_are_counted(tmp_path: Path, dtype: str) -> None:
    array = random_array(600, 700).astype(BFLOAT16 if dtype == "bfloat16" else dtype)
    array[0, 0] = array[599, 699] = np.nan
    array[300, 1] = -np.inf
    report = checked(write(tmp_path / "bad.safetensors", {"fine": random_array(4), "bad": array}))
    (problem,) = report.problems
    assert (problem.kind, problem.names, problem.count) == (FindingKind.NON_FINITE, ["bad"], 3)
    assert problem.message == "'bad': 2 NaN and 1 infinite of 420,000 values"
    assert checked(tmp_path / "bad.safetensors", names="fine").problems == []


def test_narrow_floats_and_truth_values_are_looked_at(tmp_path: Path) -> None:
    tensors = {
        "w": ("F8_E4M3", [4], b"\x7f\xff\x01\x02"),
        "w_scale": ("F32", [1], np.float32(1).tobytes()),
        "v": ("F8_E5M2", [3], b"\x7c\xfc\x7f"),
        "v_scale_inv": ("F32", [1], np.float32(2).tobytes()),
        "mask": ("BOOL", [5], b"\0\1\2\xff\1"),
        "bytes": ("U8", [5], b"\0\1\2\xff\1"),
    }
    report = checked(write_raw(tmp_path / "narrow.safetensors", tensors))
    assert {problem.names[0]: (problem.kind, problem.count) for problem in report.problems} == {
        "w": (FindingKind.NON_FINITE, 2),
        "v": (FindingKind.NON_FINITE, 3),
        "mask": (FindingKind.INVALID_BOOLEAN, 2),
    }


@pytest.mark.parametrize(
    ("name", "scale", "is_problem"),
    [
        ("proj.weight", "proj.weight_scale", False),
        ("proj.weight", "proj.weight_scale_inv", False),
        ("proj.weight", "proj.scale_weight", False),
        ("wte", "wte_scale", False),
        ("proj.weight", "proj.input_scale", True),
        ("proj.weight", "other.weight_scale", True),
        ("experts.up", "experts.down_scale", True),
    ],
)
def test_narrow_floats_need_their_scales(tmp_path: Path, name: str, scale: str, is_problem: bool) -> None:
    for dtype, content in (("F8_E4M3", b"\1\2"), ("F4", b"\1"), ("F8_E5M2", b"\1\2")):
        tensors = {name: (dtype, [2], content), scale: ("F32", [1], bytes(4))}
        problems = inspect(write_raw(tmp_path / "scaled.safetensors", tensors)).problems
        assert kinds(problems) == [FindingKind.NO_SCALE] * is_problem


def test_the_same_bytes_under_several_names_are_found(tmp_path: Path) -> None:
    table, other = random_array(50, 8), random_array(50, 8)
    tensors = {"table": table, "head": table, "other": other, "ones": np.ones(9), "more_ones": np.ones(9)}
    tensors |= {"same_values": table.astype(np.float64)}
    report = checked(write(tmp_path / "twice.safetensors", tensors))
    note = only(report.notes, FindingKind.STORED_TWICE)
    assert (sorted(note.names), note.bytes) == (["head", "table"], table.nbytes)
    assert report.problems == []


@pytest.mark.parametrize("place", [5, -1, None])
def test_only_tensors_of_one_value_are_no_twins(tmp_path: Path, place: int | None) -> None:
    """One value that differs, in the first tile or in the last, makes a tensor worth storing once."""
    array = np.zeros(TILE_BYTES // 4 + 100, np.float32)
    if place is not None:
        array[place] = 1
    report = checked(write(tmp_path / "twice.safetensors", {"a": array, "b": array}))
    assert kinds(report.notes).count(FindingKind.STORED_TWICE) == (place is not None)


# ---------------------------------------------------------------------- while it is read


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_one_error(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = write(tmp_path / "large.safetensors", {"a": random_array(1 << 20)})
    with pytest.raises(CheckpointError, match=r"large\.safetensors: expected .* (truncated|changed)"):
        checked(path, on_progress=lambda done, total: change(path))


@pytest.mark.parametrize(("kind", "ending"), [("SafetensorsFile", "safetensors"), ("GgufSource", "gguf")])
def test_the_header_is_that_of_the_file_that_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ending: str
) -> None:
    """A file is replaced after it was opened, and before its header is parsed."""
    path = write(tmp_path / "model.safetensors", {"a": random_array(3)})
    if ending == "gguf":
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf_file_bytes(rotary_model()))
    parse = getattr(opening, kind)

    def replace_and_parse(place: Path) -> Any:
        replace(place)
        return parse(place)

    monkeypatch.setattr(opening, kind, replace_and_parse)
    with pytest.raises(CheckpointError, match=rf"model\.{ending}: expected the file that was opened"):
        inspect(path)


def test_progress_ends_at_the_number_of_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "two.safetensors", {"a": random_array(1 << 20), "b": random_array(3)})
    seen: list[tuple[int, int]] = []
    checked(path, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == ((1 << 22) + 12, (1 << 22) + 12)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) >= 3


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for elements in (1 << 21, 1 << 23):
        path = tmp_path / f"{elements}.safetensors"
        header = {
            name: entry("F32", [elements], 4 * elements * i, 4 * elements * (i + 1)) for i, name in enumerate("ab")
        }
        path.write_bytes(file_bytes(header, np.arange(2 * elements, dtype=np.float32).tobytes()))
        tracemalloc.start()
        try:
            checked(path)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 16)
    assert peaks[1] < 6 * TILE_BYTES


def test_every_narrow_pattern_is_what_ml_dtypes_says(tmp_path: Path) -> None:
    """All 256 bytes of every FP8 format."""
    formats = {
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }
    every = bytes(range(256))
    for name, dtype in formats.items():
        tensors = {"w": (name, [256], every), "w_scale": ("F32", [1], bytes(4))}
        values = np.frombuffer(every, dtype).astype(np.float64)
        expected = int(np.count_nonzero(~np.isfinite(values)))
        problems = checked(write_raw(tmp_path / f"{name}.safetensors", tensors)).problems
        assert sum(problem.count or 0 for problem in problems) == expected > 0
