"""``mila network``: a definition checked, shown, planned and drawn; a wrong one with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

import mila
from mila.cli.app import app
from mila.devices import ExecutionContext
from mila.network_language import BUILT_IN
from mila.network_language.catalogue import example_source, operator_section, resolve_example
from mila.network_language.drawing import draw
from mila.network_language.limits import LARGEST_SOURCE_BYTES
from mila.serialization import filesystem
from tests.cli.commands import documents, mila_here, mila_process
from tests.cli.terminal import Terminal

ENCODER = "tokens = embedding(x, 32, 8)\nfeatures = linear(tokens)\ngather_token(features, x)\n"
CONTRACTS = "# input: B, 6\n# output: B, 8\n# input_dtype: int64\n"
OPTIONS = ("--input", "B,6", "--output", "B,8", "--input-dtype", "int64")
NAMED = "gather_token(x, ids)"
NAMED_OPTIONS = ("--input", "x=B,6,8", "--input", "ids=B,6", "--input-dtype", "ids=int64", "--output", "B,8")


def network_here(source: str, *options: str | Path) -> Result:
    """Run the command on a definition from standard input."""
    return CliRunner().invoke(app, ["network", "-", *map(str, options)], input=source)


def encoder(**changes: Any) -> mila.DefinedNetwork:
    given: dict[str, Any] = {"input_shape": ("B", 6), "output_shape": ("B", 8), "input_dtype": "int64"}
    return mila.network(ENCODER, **{**given, **changes})


@pytest.mark.parametrize(("source", "options"), [(ENCODER, OPTIONS), (CONTRACTS + ENCODER, ())])
def test_the_table_the_parameters_and_the_plan(source: str, options: tuple[str, ...]) -> None:
    result = network_here(source, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    network = encoder()
    assert result.stdout.startswith(f"{network.resolved}\n\nParameters: 328\n\nMemory for inference, batch 1:\n")
    plan = network.plan(mila.BuildContext((1, 6), mila.RuntimeMode.INFERENCE))
    assert f"fits: needs {plan.reserved_bytes:,} bytes" in result.stdout
    assert str(network) not in result.stdout


def test_where_inputs_come_from_is_printed_on_demand() -> None:
    assert encoder().resolved.network_table() in network_here(ENCODER, *OPTIONS, "--graph").stdout


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_plan_is_that_of_the_batch_and_the_mode(mode: str) -> None:
    result = network_here(ENCODER, *OPTIONS, "--batch", "32", "--mode", mode, "--json")
    network, plan = encoder(), json.loads(result.stdout)["plan"]
    expected = network.plan(mila.BuildContext((32, 6), mila.RuntimeMode[mode.upper()]))
    assert (plan["batch"], plan["mode"], plan["fits"]) == (32, mode, True)
    assert (plan["reserved_bytes"], plan["arenas"]) == (expected.reserved_bytes, dict(expected.arena_bytes))


def test_memory_that_is_not_known_neither_fits_nor_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionContext, "available_bytes", lambda _: None)
    assert "does not say how much memory is available" in network_here(ENCODER, *OPTIONS).stdout
    plan = json.loads(network_here(ENCODER, *OPTIONS, "--json").stdout)["plan"]
    assert (plan["fits"], plan["available_bytes"]) == (None, None)


def test_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionContext, "allocate", None)
    assert network_here(ENCODER, *OPTIONS).exit_code == 0


def test_options_win_over_comments() -> None:
    result = network_here(CONTRACTS + "# dtype: float16\n" + ENCODER, "--output", "B,5", "--dtype", "bfloat16")
    assert result.stdout.startswith("Network: [B, 6] -> [B, 5]  dtype=bfloat16  input_dtype=int64\n")
    result = network_here("# input: what comes in\n" + ENCODER, *OPTIONS)
    assert result.exit_code == 0, "a comment that an option replaces is not read"


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (NAMED, NAMED_OPTIONS),
        (f"# input: x = B, 6, 8\n# input: ids = B, 6\n# input_dtype: ids = int64\n# output: B, 8\n{NAMED}", ()),
        (f"# output: [B, 8]\n{NAMED}", NAMED_OPTIONS),
    ],
)
def test_several_inputs_have_names(source: str, options: tuple[str, ...]) -> None:
    result = network_here(source, *options)
    assert result.stdout.startswith(
        "Network: x=[B, 6, 8], ids=[B, 6] -> [B, 8]  dtype=float32  input_dtype=ids=int64\n"
    )


def test_outputs_may_have_names() -> None:
    result = network_here("a = linear(x, 2)\nb = relu(a)", "--input", "B,6", "--output", "b=B,2", "--output", "a=B,2")
    assert result.stdout.startswith("Network: [B, 6] -> b=[B, 2], a=[B, 2]  dtype=float32\n")


def test_an_example_of_the_catalogue_is_a_file_for_it(tmp_path: Path) -> None:
    example = BUILT_IN["gather_token"].examples[-1]
    (tmp_path / "example.txt").write_text(example_source(example), "utf-8")
    result = mila_here("network", tmp_path / "example.txt", "--mode", "training")
    assert result.stdout.startswith(f"{resolve_example(example)}\n"), result.stderr


def test_a_fixed_batch_is_that_of_the_plan() -> None:
    options = ("--input", "4,6", "--output", "4,8", "--json")
    assert json.loads(network_here("linear()", *options).stdout)["plan"]["batch"] == 4
    assert network_here("linear()", *options, "--batch", "4").exit_code == 0
    result = network_here("linear()", *options, "--batch", "3")
    assert (result.exit_code, result.stderr) == (2, "mila: --batch: the contracts fix it at 4, got 3\n")


def test_json_is_all_of_it_in_one_document() -> None:
    result = network_here(CONTRACTS + ENCODER, "--json")
    (document,) = documents(result.stdout)
    resolved = encoder().resolved
    assert (document["event"], document["dtype"], document["parameters"]) == ("network", "float32", 328)
    assert document["inputs"] == [{"name": "x", "ref": "input:x", "shape": ["B", 6], "dtype": "int64"}]
    assert document["outputs"] == [{"name": "output", "ref": "node:n2/out", "shape": ["B", 8], "dtype": "float32"}]
    assert document["semantic_digest"] == resolved.semantic_digest
    assert document["nodes"][1] == {
        "id": "n1",
        "operation": "linear",
        "identity": "linear@1",
        "arguments": {"out_features": 8, "in_features": 8, "bias": True, "spectral_norm": False},
        "provenance": {
            "out_features": "inferred",
            "in_features": "inferred",
            "bias": "operator default",
            "spectral_norm": "operator default",
        },
        "inputs": {"x": {"from": "node:n0/out", "shape": ["B", 6, 8]}},
        "outputs": {"out": {"shape": ["B", 6, 8]}},
        "parameters": {"weight": [8, 8], "bias": [8]},
        "line": 5,
        "column": 12,
    }


def test_a_drawing_is_written(tmp_path: Path) -> None:
    (tmp_path / "encoder.svg").write_text("<svg>before</svg>")
    result = network_here(ENCODER, *OPTIONS, "--svg", tmp_path / "encoder.svg")
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.svg"]
    text = (tmp_path / "encoder.svg").read_text("utf-8")
    assert (result.exit_code, text) == (0, draw(encoder().resolved))
    ElementTree.fromstring(text)
    result = network_here(ENCODER, *OPTIONS, "--svg", tmp_path / "nowhere" / "encoder.svg")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "nowhere" in result.stderr


def test_a_drawing_replaces_a_drawing_and_nothing_else(tmp_path: Path) -> None:
    definition, drawing = tmp_path / "encoder.svg", tmp_path / "drawing.svg"
    definition.write_text(CONTRACTS + ENCODER)
    (tmp_path / "link.svg").symlink_to(definition)
    (tmp_path / "notes.svg").write_text("Notes on <svg>.")
    (tmp_path / "plain.txt").write_text("plain")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for svg, said in (
        (definition, "expected another file than the definition, got"),
        (tmp_path / "link.svg", "expected another file than the definition, got"),
        (tmp_path / "notes.svg", "expected a free name or an SVG to replace, got"),
        (tmp_path / "plain.txt", "expected a file that ends in .svg, got 'plain.txt'"),
        (Path("-"), "expected a file that ends in .svg, got '-'; standard output has the table"),
    ):
        result = mila_here("network", definition, "--svg", svg)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert result.stderr.startswith(f"mila: --svg: {said}")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for old in ("", "<?xml version='1.0'?>\n<svg/>", "<svg></svg>", draw(encoder().resolved)):
        drawing.write_text(old)
        assert mila_here("network", definition, "--svg", drawing).exit_code == 0
        assert drawing.read_text("utf-8") == draw(encoder().resolved)


def test_a_drawing_that_cannot_be_written_whole_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "encoder.svg"
    file.write_text("<svg>before</svg>")

    def half(stream: BinaryIO, content: bytes) -> None:
        stream.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(filesystem, "write", half)
    result = network_here(ENCODER, *OPTIONS, "--svg", file)
    assert (result.exit_code, "what was there stays" in result.stderr) == (1, True)
    assert (file.read_text(), len(list(tmp_path.iterdir()))) == ("<svg>before</svg>", 1)


def test_a_definition_that_is_too_long_is_named_by_where_it_is_from(tmp_path: Path) -> None:
    source = "#" * (LARGEST_SOURCE_BYTES + 1)
    result = network_here(source, *OPTIONS)
    assert (result.exit_code, result.stderr.splitlines()[0][:33]) == (2, "mila: standard input: E_RESOURCE:")
    (tmp_path / "long.txt").write_text(source)
    result = CliRunner().invoke(app, ["network", str(tmp_path / "long.txt"), *OPTIONS])
    assert (result.exit_code, "long.txt: E_RESOURCE:" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("source", "message", "line", "caret"),
    [
        ("tokens = embeding(x, 32, 8)", "E_SYNTAX (line 1, column 10): there is no operator 'embeding'", 1, 9),
        ("h = embedding(x, 32, 8)\n\n  linear(h)", "E_SYNTAX (line 3, column", 3, None),
        ("h = embedding(x, 32, 9)\ngather_token(h, x)", "E_CONSTRAINT (node n1; line 2, column 1): gather", 2, 0),
        ("h = linear(x, 8)\ngather_token(h, x)", "E_DTYPE (node n0; line 1, column 5): n0 (linear", 1, 4),
        ("\t\u6f22 = embeding(x)", "E_SYNTAX (line 1, column 6)", 1, 6),
        ("h = embedding(x, 32, 8)\nsplit(h, 3, di=1)", "E_ARGUMENT (line 2, column 1): split has no argument", 2, 0),
        ("# dtype: float32\n# dtype: float16", "E_SCHEMA (line 2, column 10): # dtype: it is given twice", 2, 9),
        ("# output: pooled\nrelu()", "E_SCHEMA (line 1, column 11): # output: expected a shape", 1, 10),
    ],
)
def test_a_wrong_definition_is_shown_with_its_place(source: str, message: str, line: int, caret: int | None) -> None:
    options = OPTIONS if "# output" not in source else ("--input", "B,6")
    result = network_here(source, *options)
    said, shown, below = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert said.startswith(f"mila: standard input: {message}")
    assert shown == f"{line:4} | {source.splitlines()[line - 1]}".replace("\t", " ")
    assert below.rstrip("^ ") == "     |" and (caret is None or below == f"     | {' ' * caret}^")


def test_a_long_line_is_shown_around_its_place() -> None:
    source = f"h = linear({' ' * 300}x, wrong, {' ' * 300}8)\x1b[0m"
    result = network_here("h = concat(x, x" + ", x" * 200 + ", wrong)", "--input", "B,6", "--output", "B,6")
    shown, below = result.stderr.splitlines()[1:]
    assert shown.startswith("   1 | …") and shown[below.index("^") :].startswith("wrong")
    assert len(shown) < 120
    assert "\x1b" not in network_here(source, "--input", "B,6", "--output", "B,6").stderr


def test_an_error_as_json_has_code_and_place() -> None:
    result = network_here("h = linear(x, 8)\ngather_token(h, x)", *OPTIONS, "--json")
    (document,) = documents(result.stdout)
    assert (result.exit_code, result.stderr) == (2, "")
    assert "takes float32, but input:x is int64" in document.pop("message")
    assert document == {"event": "error", "code": "E_DTYPE", "node": "n0", "line": 1, "column": 5}


@pytest.mark.parametrize(
    ("source", "options", "code", "said"),
    [
        (
            "linear()",
            (),
            2,
            "the input contract is missing: --input B,6, or a comment at the top such as # input: B, 6",
        ),
        ("linear()", ("--input", "B,6"), 2, "the output contract is missing"),
        ("# Input: B, 6\nlinear()", (), 2, "# input: B, 6; line 1 says # Input: where # input: is a contract"),
        ("\n# outputs: B, 6\nlinear()", ("--input", "B,6"), 2, "; line 2 says # outputs: where # output: is"),
        ("linear()", ("--input", "B,x", "--output", "B,6"), 2, "--input: expected a shape such as B, 6, 8"),
        ("linear()", ("--input", "B,6", "--output", "B,6", "--output", "B,7"), 2, "--output: several tensors"),
        ("linear()", (*OPTIONS[:4], "--input-dtype", "x=bool", "--input-dtype", "x=bool"), 2, "--input-dtype: x is"),
        ("linear()", ("--input", "B,6", "--output", "B,0"), 2, "E_SCHEMA: output output: an axis is a positive"),
        ("linear()", (*OPTIONS[:4], "--dtype", "float64"), 2, "E_SCHEMA: dtype is one of float32"),
        ("linear()", (*OPTIONS[:4], "--mode", "training", "--batch", "0"), 2, "--batch"),
        ("x" * 70_000, OPTIONS, 2, "mila: standard input: E_RESOURCE: a definition has at most 65,536 bytes"),
        ("", ("--list",), 2, "expected one of FILE, --list and --operator"),
    ],
)
def test_what_cannot_be_shown_is_refused(source: str, options: tuple[str, ...], code: int, said: str) -> None:
    result = network_here(source, *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_a_comment_that_nearly_is_a_dtype_is_noted() -> None:
    result = network_here(f"# Dtype: float16\n{ENCODER}", *OPTIONS)
    assert (result.exit_code, result.stderr) == (0, "note: line 1 says # Dtype: where # dtype: is a contract\n")
    for options in (("--dtype", "float16"), ("--dtype", "bfloat16")):
        assert network_here(f"# Dtype: float16\n{ENCODER}", *OPTIONS, *options).stderr == ""


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"relu()\xff")
    for name, said in (("bytes.txt", "expected UTF-8, got byte 0xff at 6"), ("none.txt", "No such file")):
        result = mila_here("network", tmp_path / name, *OPTIONS)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert said in result.stderr


def test_files_of_other_editors_are_read(tmp_path: Path) -> None:
    (tmp_path / "encoder.txt").write_bytes(b"\xef\xbb\xbf" + (CONTRACTS + ENCODER).replace("\n", "\r\n").encode())
    assert mila_here("network", tmp_path / "encoder.txt").exit_code == 0


def test_what_does_not_fit_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionContext, "available_bytes", lambda self: 1000)
    result = network_here(ENCODER, *OPTIONS)
    assert result.exit_code == 3
    assert result.stderr.startswith("mila: does not fit: needs ")


def test_the_operators_are_listed() -> None:
    shown = mila_here("network", "--list").stdout
    for operator in BUILT_IN.operators:
        assert f"  {operator.alias} " in shown and operator.summary in shown
    listed = documents(mila_here("network", "--list", "--json").stdout)
    assert [each["name"] for each in listed] == [*BUILT_IN]
    assert listed[0]["arguments"][0]["axis"] == "D_out"


def test_an_operator_is_its_section_of_the_page() -> None:
    operator = BUILT_IN["gather_token"]
    assert mila_here("network", "--operator", "gather_token").stdout == f"{operator_section(operator)}\n"
    result = mila_here("network", "--operator", "gather")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no operator 'gather'" in result.stderr and "gather_token" in result.stderr


def test_an_operator_on_a_terminal_is_laid_out() -> None:
    with Terminal("network", "--operator", "gather_token", columns=100, rows=60) as terminal:
        assert terminal.finish() == 0
    assert "```" not in terminal.shown and "| ---" not in terminal.shown
    assert "Takes the token whose id is the largest." in terminal.shown


def test_it_runs_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "encoder.txt").write_text(CONTRACTS + ENCODER)
    done = mila_process("network", tmp_path / "encoder.txt")
    assert (done.returncode, done.stderr) == (0, "")
