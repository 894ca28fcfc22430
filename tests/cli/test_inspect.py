"""``mila inspect`` and ``mila compare``: what is printed, exit codes, and JSON that is what is published."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from mila.cli.inspect_text import printable
from mila.errors import CheckpointError
from mila.planning import ComparisonReport, InspectionReport, compare, inspect
from mila.planning.inspection_report import FindingKind, Refusal
from mila.planning.inspection_schema import read_document, schema_text
from tests.cli.commands import mila_here
from tests.cli.terminal import Terminal
from tests.gguf.gguf_bytes import Raw, gguf_bytes
from tests.models.folder_cases import GOLDEN
from tests.planning.stored_files import golden_folder, random_array, write, write_raw

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "specs" / "inspect.schema.json"
BOTH = ("inspect", "compare")


def document(*arguments: str | Path) -> tuple[int, InspectionReport | ComparisonReport | Refusal]:
    """Run with ``--json``; return the exit code and the only document."""
    result = mila_here(*arguments, "--json")
    assert (result.stderr, result.stdout.count("\n")) == ("", 1)
    json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return result.exit_code, read_document(result.stdout)


# ---------------------------------------------------------------------- inspect


def test_everything_is_printed(tmp_path: Path) -> None:
    folder = GOLDEN / "llama_tied_llama3"
    result = mila_here("inspect", folder, "--check")
    report = inspect(folder, check=True)
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.stdout.split())
    for row in report.tensors:
        assert f"{row.name} {row.dtype} {'x'.join(map(str, row.shape))} {row.bytes:,} {row.file}" in text
    for file in report.files:
        assert f"{file.name} {file.tensors} {file.tensor_bytes:,} {file.bytes:,}" in text
    assert f"total 20 {report.selected_elements:,} {report.stored_bytes:,} 9.28 KiB" in text
    assert "format = pt" in text
    assert "hidden_size = 12" in text
    assert "No problems; every value was read." in text


def test_a_selection_is_called_one(tmp_path: Path) -> None:
    folder = GOLDEN / "gpt2_tied"
    result = mila_here("inspect", folder, "--names", "*.attn.*", "--sort", "bytes", "--check")
    assert "*.attn.*: 8 of 28 tensors" in result.stdout
    assert "No problems; every value of these tensors was read." in result.stdout
    names = re.findall(r"^transformer\S+", result.stdout, re.MULTILINE)
    assert names == [row.name for row in inspect(folder, names="*.attn.*", sort="bytes").tensors]
    assert "No tensor matches zz." in mila_here("inspect", folder, "--names", "zz").stdout


def test_exit_codes_say_what_happened(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.safetensors", {"w": np.array([1, np.nan], np.float32)})
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(bad.read_bytes()[:-1])
    assert mila_here("inspect", bad).exit_code == 0
    result = mila_here("inspect", bad, "--check")
    assert (result.exit_code, "'w': 1 NaN of 2 values" in result.stdout) == (1, True)
    result = mila_here("inspect", cut)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "is the download complete?" in result.stderr
    for wrong in (("nothing",), (bad, "--sort", "size"), (bad, "--names", "")):
        assert mila_here("inspect", *wrong).exit_code == 2


def test_nothing_is_said_of_values_that_nobody_read(tmp_path: Path) -> None:
    config = GOLDEN / "gpt2_tied" / "config.json"
    empty = write(tmp_path / "empty.safetensors", {})
    one = write(tmp_path / "one.safetensors", {"w": np.ones(2)})
    for arguments in ((config,), (empty,), (one, "--names", "zz")):
        result = mila_here("inspect", *arguments, "--check")
        assert result.exit_code == 0
        assert result.stdout.endswith("No problems; there were no values to read.\n")


def test_blocks_that_cannot_be_read_are_not_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise CheckpointError("no package")

    monkeypatch.setattr("mila.planning.value_scan.check_readable", refuse)
    packed = tmp_path / "packed.gguf"
    packed.write_bytes(gguf_bytes({}, {"w": Raw(2, (1, 32), bytes(18))}))
    text = mila_here("inspect", packed, "--check").stdout
    assert "the values of 1 tensor were not looked at: no package" in text
    assert text.endswith("No problems in what was read.\n")


def test_a_config_that_is_refused_is_exit_code_1(tmp_path: Path) -> None:
    for name, config in (("negative", {"model_type": "llama", "hidden_size": -1}), ("nothing", {})):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config))
        result = mila_here("inspect", file, "--check")
        assert (result.exit_code, result.stdout.endswith("1 problem.\n")) == (1, True)
        assert mila_here("inspect", file).exit_code == 0
        code, report = document("inspect", file, "--check")
        assert isinstance(report, InspectionReport)
        assert (code, [each.kind for each in report.problems]) == (1, [FindingKind.NOT_LOADABLE])


def test_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    names = ["\x1b[2Jx", "a\nb", "\u202egnp", "tab\there", "\x9b1mc"]
    path = write_raw(
        tmp_path / "names.safetensors", {name: ("U8", [1], b"\1") for name in names}, note="\x1b]0;title\a"
    )
    other = write_raw(tmp_path / "other.safetensors", {name: ("U8", [1], b"\2") for name in names})
    for result in (mila_here("inspect", path), mila_here("compare", path, other)):
        assert all(character.isprintable() or character == "\n" for character in result.stdout)
        for shown in ("\\x1b[2Jx", "a\\x0ab", "\\u202egnp", "tab\\x09here", "\\x9b1mc"):
            assert shown in result.stdout
    assert "note = \\x1b]0;title\\x07" in mila_here("inspect", path).stdout
    assert printable("x" * 300, 100) == "x" * 100 + "… (300 characters)"


# ---------------------------------------------------------------------- what `mila train` wrote


def test_a_run_folder_is_its_newest_checkpoint(run: Path) -> None:
    result = mila_here("inspect", run, "--check")
    assert result.exit_code == 0, result.stdout
    newest = sorted(path.name for path in run.iterdir() if path.is_dir())[-1]
    for words in ("archive of Mila", newest, "mode = checkpoint", "model/parameters.safetensors", "No problems"):
        assert words in result.stdout
    report = inspect(run / newest)
    files = {file.name: file for file in report.files}
    assert set(files) == {"model/parameters.safetensors", "optimizer/moments.safetensors"}
    parameters, moments = (files[name].tensor_bytes for name in sorted(files))
    assert moments == 2 * parameters
    assert report.config is not None
    assert report.config["class"] == "GptTransformer"


def test_a_changed_byte_of_an_archive_is_found(run: Path, tmp_path: Path) -> None:
    newest = sorted(path for path in run.iterdir() if path.is_dir())[-1]
    copy = Path(shutil.copytree(newest, tmp_path / "copy"))
    weights = copy / "model" / "parameters.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code, report = document("inspect", copy, "--check")
    assert isinstance(report, InspectionReport)
    assert (code, [(each.kind, each.names) for each in report.problems]) == (
        1,
        [(FindingKind.CHECKSUM, ["model/parameters.safetensors"])],
    )
    assert mila_here("compare", newest, copy).exit_code == 1
    assert mila_here("compare", newest, run).exit_code == 0


# ---------------------------------------------------------------------- compare


def test_differences_are_printed(tmp_path: Path) -> None:
    table = random_array(10, 3)
    a = write(tmp_path / "a.safetensors", {"w": table, "x": table, "left": np.ones(2)}, {"step": "1"})
    b = write(tmp_path / "b.safetensors", {"w": table + np.float32(0.5), "x": table.astype(np.float64)})
    result = mila_here("compare", a, b)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    (row,) = (row for row in compare(a, b).tensors if row.name == "w")
    assert row.values is not None
    assert row.values.largest_absolute is not None
    for words in (
        f"w: 30 of 30 elements differ, at most by {row.values.largest_absolute:.6g}",
        "x: same values, other dtype (float32 10x3 and float64 10x3)",
        "left: only in A (float64 2)",
        'step: "1" in A, absent in B',
        "DIFFERENT",
    ):
        assert words in text


def test_exit_codes_of_a_comparison_are_those_of_diff(tmp_path: Path) -> None:
    a = write(tmp_path / "a.safetensors", {"w": np.ones(3)})
    b = write(tmp_path / "b.safetensors", {"w": np.ones(3, np.float32)})
    c = write(tmp_path / "c.safetensors", {"w": np.array([1, 1, 1.5], np.float64)})
    (tmp_path / "cut.safetensors").write_bytes(a.read_bytes()[:-1])
    for other, options, code in (
        (a, (), 0),
        (b, (), 0),
        (b, ("--no-values",), 1),
        (c, (), 1),
        (c, ("--tolerance", "0.5"), 0),
        (c, ("--no-values",), 0),
        (c, ("--tolerance", "-1"), 2),
        (tmp_path / "cut.safetensors", (), 2),
        (tmp_path / "nothing", (), 2),
    ):
        result = mila_here("compare", a, other, *options)
        assert result.exit_code == code, (other, options)
        assert result.stderr.count("\n") == (code == 2)
    assert "The same (values not compared)." in mila_here("compare", a, c, "--no-values").stdout


def test_values_without_a_measure_are_counted(tmp_path: Path) -> None:
    a = write(tmp_path / "a.safetensors", {"w": np.array([1, np.inf, np.nan])})
    b = write(tmp_path / "b.safetensors", {"w": np.array([-np.inf, -np.inf, 1])})
    text = mila_here("compare", a, b).stdout
    words = "w: 3 of 3 elements differ; 1 NaN on one side alone; 2 infinite on one side alone or with another sign"
    assert words in text
    assert f"A: {a} (safetensors file, 1 tensor, 24 bytes)" in text


def test_configs_are_compared(tmp_path: Path) -> None:
    a, b = GOLDEN / "llama_grouped" / "config.json", GOLDEN / "mistral_window" / "config.json"
    result = mila_here("compare", a, b)
    assert result.exit_code == 1
    assert 'model_type: "llama" in A, "mistral" in B' in result.stdout
    assert "What the configs mean to Mila:\n  sliding_window: null in A, 4 in B" in result.stdout


# ---------------------------------------------------------------------- JSON


def test_documents_are_what_python_gives(tmp_path: Path) -> None:
    folder = golden_folder("gpt2_tied", tmp_path)
    assert document("inspect", folder, "--check") == (0, inspect(folder, check=True))
    assert document("compare", folder, GOLDEN / "gpt2_bare_bfloat16") == (
        1,
        compare(folder, GOLDEN / "gpt2_bare_bfloat16"),
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("inspect", "nothing"), 2),
        (("inspect", "cut"), 1),
        (("inspect",), 2),
        (("inspect", "cut", "--bogus"), 2),
        (("compare", "cut"), 2),
        (("compare", "cut", "cut"), 2),
        (("compare", "cut", "cut", "--tolerance", "x"), 2),
    ],
)
def test_whatever_goes_wrong_is_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut").mkdir()
    Path("cut/model.safetensors").write_bytes(b"\0")
    found, report = document(*arguments)
    assert isinstance(report, Refusal)
    assert (found, report.exit_code) == (code, code)
    assert report.message


def test_infinite_differences_are_json(tmp_path: Path) -> None:
    a = write(tmp_path / "a.safetensors", {"w": np.array([np.inf, 1.7e308], np.float64)})
    b = write(tmp_path / "b.safetensors", {"w": np.array([1, -1.7e308], np.float64)})
    code, report = document("compare", a, b)
    assert (code, isinstance(report, ComparisonReport)) == (1, True)


def test_the_checked_in_schema_is_that_of_the_models() -> None:
    command = [sys.executable, "-W", "error", "-m", "mila.planning.inspection_schema"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == schema_text()
    assert SCHEMA.read_text("utf-8") == printed, f"run {' '.join(command[3:])} > specs/inspect.schema.json"


def test_what_is_no_document_is_refused() -> None:
    for text in ("{}", '{"event": "plan"}', '{"event": "inspection"}', '{"event": "error", "targets": []}'):
        with pytest.raises(ValidationError):
            read_document(text)


@pytest.mark.parametrize("command", BOTH)
def test_help_has_an_example_and_the_exit_codes(command: str) -> None:
    text = " ".join(mila_here(command, "--help").output.split())
    assert f"Example: mila {command}" in text
    assert "Exit codes: 0" in text


def test_progress_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "large.safetensors", {"w": random_array(1 << 21)})
    with Terminal("inspect", path, "--check", columns=100) as terminal:
        terminal.wait_for("checking")
        terminal.wait_for("No problems")
        assert terminal.finish() == 0


def test_the_readme_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text("utf-8")
    ((arguments, shown),) = re.findall(r"^\$ mila (inspect [^\n]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert mila_here(*arguments.split()).stdout == shown


def test_what_explains_all_differences_is_said_before_them(tmp_path: Path) -> None:
    names = [f"layer{number}.w" for number in range(20)]
    a = write(tmp_path / "a.safetensors", {name: random_array(3) for name in names})
    b = write(tmp_path / "b.safetensors", {f"model.{name}": random_array(3) for name in names})
    lines = mila_here("compare", a, b).stdout.splitlines()
    note = lines.index("  all names of A are in B with 'model.' before them")
    assert note < lines.index("Tensors that are not identical:") < 12


@pytest.mark.parametrize("command", BOTH)
def test_what_the_system_refuses_is_a_line_or_a_document(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `compare` no other code than that of trouble: 1 would say that two files differ."""

    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error", "model.safetensors")

    for module in ("inspection", "comparison"):
        monkeypatch.setattr(f"mila.planning.{module}.open_content", fail)
    targets, code = (["a"], 1) if command == "inspect" else (["a", "b"], 2)
    result = mila_here(command, *targets)
    words = "model.safetensors: Input/output error"
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"mila: {words}\n")
    found_code, found = document(command, *targets)
    assert isinstance(found, Refusal)
    assert (found_code, found.exit_code, found.targets, found.message) == (code, code, targets, words)


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("around", [('{"a":', "}"), ("[", "]")], ids=["objects", "lists"])
def test_a_config_of_too_many_levels_is_a_line_or_a_document(
    command: str, around: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    targets = [str(file)] * (1 + (command == "compare"))
    for levels, words in ((64, None), (65, "levels of objects and lists"), (900, "levels of objects and lists")):
        inner = levels - 1
        file.write_text(f'{{"a": {around[0] * inner}{around[1] * inner}}}'.replace(":}", ":1}"))
        code, found = document(command, *targets)
        refused = 1 if command == "inspect" else 2
        assert code == mila_here(command, *targets).exit_code == (0 if words is None else refused)
        assert words is None or (isinstance(found, Refusal) and words in found.message)


@pytest.mark.parametrize("command", BOTH)
def test_ctrl_c_is_a_line_or_a_document(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    for module in ("inspection", "comparison"):
        monkeypatch.setattr(f"mila.planning.{module}.open_content", interrupt)
    targets = ["a", "b"][: 1 + (command == "compare")]
    result = mila_here(command, *targets)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "mila: interrupted\n")
    code, found = document(command, *targets)
    assert isinstance(found, Refusal)
    assert (code, found.exit_code, found.targets, found.message) == (130, 130, targets, "interrupted")
