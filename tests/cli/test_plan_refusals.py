"""``mila plan``, refused: one line or one document, and an exit code that says which kind of refusal it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mila.planning import Failure
from mila.planning.schema import read_document
from tests.cli.commands import mila_here
from tests.cli.plan_documents import FIXED, document
from tests.models.folder_cases import GOLDEN
from tests.planning.random_models import random_config

WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("nosuch",), 2, "'nosuch': expected a file, a folder, a preset or hf://owner/name"),
    (("gpt2", "--context", "2048"), 2, "--context: expected at most 1,024 positions, which gpt2 allows, got 2,048"),
    (("gpt2", "--context", "many"), 2, "--context: expected a number from 1 on, such as 4096 or 32k, got 'many'"),
    (("gpt2", "--batch", "0"), 2, "--batch: expected a number from 1 on"),
    (("gpt2", "--mode", "prediction"), 2, "--mode: input should be 'inference' or 'training', got 'prediction'"),
    (("gpt2", "--dtype", "int8"), 2, "mila: --dtype: expected one of float32"),
    (("gpt2", "--quantize", "fp8"), 2, "quantize: expected none"),
    (("gpt2", "--mode", "training", "--optimizer", "sgd"), 2, "--optimizer: input should be 'adamw' or 'none'"),
    (("gpt2", "--optimizer", "none"), 2, "--optimizer: is for training, got 'none' in inference"),
    (("gpt2", "--accumulate", "4"), 2, "mila: --accumulate: is for training"),
    (("gpt2", "--mode", "training", "--prefill", "8"), 2, "prefill: is for inference"),
    (("gpt2", "--prefill", "2000"), 2, "prefill: expected at most the context of 1,024 positions, got 2,000"),
    (("gpt2", "--device", "tpu"), 2, "mila: --device: expected 'cpu' or 'cuda:<index>', got 'tpu'"),
    (("gpt2", "--device", "cuda:0", "--dtype", "float64"), 2, "not float64"),
    (("gpt2", "--budget", "12G"), 2, "--budget: expected a size such as 12GiB"),
    (("gpt2", "--budget", "1ZiB"), 2, "(units: KiB, MiB, GiB, TiB, PiB, EiB; KB, MB, GB, TB, PB, EB of 1000s)"),
    (("gpt2", "--budget", "8EiB"), 2, "--budget: expected less than 8EiB, got '8EiB'"),
    (("gpt2", "--sweep", "depth=1"), 2, "--sweep: expected option=values with one of context, batch"),
    (("gpt2", "--sweep", "context"), 2, "--sweep: expected option=values"),
    (("gpt2", "--sweep", "context=9..3"), 2, "--sweep context: expected a range from less to more, got '9..3'"),
    (("gpt2", "--sweep", "batch=1", "--sweep", "batch=2"), 2, "--sweep: expected every option once, got batch twice"),
    (("gpt2", "--sweep", "context=1,2", "--context", "3"), 2, "--context: is given by --sweep too"),
    (("gpt2", "--sweep", "dtype=float32,float16", "--dtype", "float32"), 2, "--dtype: is given by --sweep too"),
    (("gpt2", "--dtype", "float32,"), 2, "--dtype: expected names by commas"),
    (("gpt2", "--sweep", "context=2k,4k"), 2, "none of 2 combinations can be built"),
    (("gpt2", "--html", "page.txt"), 2, "expected a file that ends in .html"),
    (("gpt2", "--html", ""), 2, "--html: expected the name of a file, got ''"),
    (("gpt2", "--plot", ""), 2, "--plot: expected the name of a file, got ''"),
    (("gpt2", "--plot", "picture.txt"), 2, "expected a file that ends in .png"),
    (("gpt2", "--batch", "9" * 17), 3, "more than any memory addresses"),
    (
        ("gpt2", "--batch", "9" * 20),
        2,
        "--batch: expected at most 9,223,372,036,854,775,807, got '99999999999999999999'",
    ),
    (("gpt2", "--budget", "8388608TiB"), 2, "--budget: expected less than 8EiB, got '8388608TiB'"),
    (("gpt2", "--dtype", ""), 2, "--dtype: expected a name, got ''"),
    (("gpt2", "--quantize", " "), 2, "--quantize: expected a name, got ' '"),
    (("gpt2", "--sweep", "context=8,16", "--tree"), 2, "--tree: is for one plan, got --sweep too"),
    (("gpt2", "--list-presets"), 2, "--list-presets: expected no target, got 'gpt2'"),
    (("gpt2", "--sweep", "context=1,2", "--sweep", "batch=" + ",".join(map(str, range(1, 130)))), 2, "got 258"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_one_line_or_one_document(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = mila_here("plan", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("mila: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    found_code, found = document(*arguments)
    assert isinstance(found, Failure)
    assert (found_code, found.exit_code, found.target) == (code, code, arguments[0])
    assert f"mila: {found.message}\n" == result.stderr


@pytest.mark.parametrize("arguments", [("gpt2", "--nonsense"), (), ("gpt2", "--context"), ("gpt2", "gpt2")])
def test_wrong_usage_is_a_document_too(arguments: tuple[str, ...]) -> None:
    plain = mila_here("plan", *arguments)
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert plain.stderr.startswith("mila: ") or "Error: " in plain.stderr
    result = mila_here("plan", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (2, "")
    assert isinstance(read_document(result.stdout), Failure)


def test_of_wrong_usage_the_target_is_no_value_of_an_option() -> None:
    code, found = document("--context", "32k", "--tree", "gpt2", "--nonsense")
    assert isinstance(found, Failure)
    assert (code, found.target) == (2, "gpt2")


def test_long_names_are_shortened_in_the_middle() -> None:
    for name in ("x" * 5000, f"{'y' * 100}/{'z' * 5000}.gguf", f"hf://a/{'b' * 5000}"):
        result = mila_here("plan", name)
        assert (result.exit_code in (1, 2), len(result.stderr) < 600) == (True, True)
        found = document(name)[1]
        assert isinstance(found, Failure)
        assert (found.target, f"mila: {found.message}\n") == (name, result.stderr)


def test_what_asks_something_ends_before_what_may_help(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(random_config(Random(1), "gpt2")))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 7)
    said = mila_here("plan", tmp_path).stderr
    assert said.endswith(f"is the download complete? To plan without the weights name {tmp_path / 'config.json'}\n")


@pytest.mark.parametrize("content", ['{"model_type": "gpt2"', "[]", '{"model_type": "gpt2"}'])
def test_a_malformed_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    result = mila_here("plan", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    code, found = document(tmp_path)
    assert isinstance(found, Failure)
    assert (code, found.exit_code) == (1, 1)
    assert str(tmp_path) in found.message


def test_of_a_model_that_mila_does_not_have_nothing_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    result = mila_here("plan", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "expected one of the model types gpt2" in result.stderr
    assert document(tmp_path)[0] == 2


def test_without_a_config_nothing_can_be_told(tmp_path: Path) -> None:
    weights = Path(shutil.copy(GOLDEN / "gpt2_tied" / "model.safetensors", tmp_path))
    for target in (tmp_path, weights):
        result = mila_here("plan", target)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "config.json" in result.stderr


def test_sizes_that_no_memory_addresses_do_not_fit(tmp_path: Path) -> None:
    config = random_config(Random(1), "gpt2") | {"n_embd": 1 << 40, "n_head": 1 << 30, "n_inner": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, found = document(tmp_path)
    assert isinstance(found, Failure)
    assert (code, found.exit_code) == (3, 3)
    assert "more than any memory addresses" in found.message


@pytest.mark.parametrize("options", [(), ("--sweep", "batch=1,2")])
def test_ctrl_c_is_a_line_or_a_document(monkeypatch: pytest.MonkeyPatch, options: Sequence[str]) -> None:
    def interrupt(*arguments: Any, **others: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mila.cli.plan.read_target", interrupt)
    result = mila_here("plan", "gpt2", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "mila: interrupted\n")
    code, found = document("gpt2", *options)
    assert isinstance(found, Failure)
    assert (code, found.exit_code, found.message) == (130, 130, "interrupted")


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for option in ("--html", "--plot"):
        place = tmp_path / "missing" / ("page.html" if option == "--html" else "picture.png")
        result = mila_here("plan", "gpt2", option, place, "--no-search", *FIXED)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        code, found = document("gpt2", option, place, "--no-search", *FIXED)
        assert isinstance(found, Failure)
        assert (code, f"mila: {found.message}\n") == (1, result.stderr)
    for option, name in (("--html", "a.html"), ("--plot", "a.png")):
        (tmp_path / name).mkdir()
        result = mila_here("plan", "nosuch", option, tmp_path / name)  # before the target is looked at
        assert (result.exit_code, result.stderr) == (1, f"mila: {tmp_path / name}: Is a directory\n")


def test_a_page_that_cannot_be_written_takes_no_plan_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **others: Any) -> None:
        raise OSError(28, "No space left on device", "page.html")

    monkeypatch.setattr("mila.planning.page.write_page", fail)
    asked = ("gpt2", "--no-search", "--html", tmp_path / "page.html", *FIXED)
    result = mila_here("plan", *asked)
    assert (result.exit_code, result.stderr) == (1, "mila: page.html: No space left on device\n")
    assert result.stdout == mila_here("plan", *asked[:2], *FIXED).stdout
    code, found = document(*asked)
    assert isinstance(found, Failure)
    assert (code, found.exit_code) == (1, 1)
