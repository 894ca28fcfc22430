"""``mila sample``: text from a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mila.cli.app import app
from mila.training import load_model, load_tokenizer, sample_text, save_model
from tests.cli.commands import TINY, mila_here


def test_it_writes_the_prompt_and_what_follows(run: Path) -> None:
    tokenizer = load_tokenizer(run)
    assert tokenizer is not None
    result = mila_here("sample", run, "--prompt", "the quick", "--length", "20", "--temperature", "0.5", "--seed", "3")
    text = sample_text(load_model(run), tokenizer, "the quick", 20, temperature=0.5, seed=3)
    assert (result.exit_code, result.stdout) == (0, f"the quick{text}\n")


def test_a_seed_decides(run: Path) -> None:
    texts = [mila_here("sample", run, "--length", "30", "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_bytes_that_are_no_characters_of_the_output_are_replaced(tmp_path: Path, text: Path) -> None:
    options = [*TINY, "--tokenizer", "byte", "--steps", "1"]
    assert mila_here("train", text, "--out", tmp_path / "run", *options).exit_code == 0
    result = CliRunner(charset="ascii").invoke(app, ["sample", str(tmp_path / "run"), "--prompt", "fox"])
    assert (result.exit_code, result.stdout[:3]) == (0, "fox")
    assert "?" in result.stdout


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--prompt", "§"], 1, "U+00A7"),
        (["--prompt", ""], 1, "expected at least one token"),
        (["--temperature", "inf"], 2, "temperature"),
        (["--temperature", "0", "--top-k", "3"], 2, "--top-k: expected only with a temperature above 0"),
        (["--prompt", "\udcff"], 1, "--prompt: expected UTF-8, got byte 0xff"),
    ],
)
def test_what_cannot_be_sampled_is_one_line(run: Path, options: list[str], code: int, said: str) -> None:
    result = mila_here("sample", run, *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert said in result.stderr


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    result = mila_here("sample", tmp_path)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert str(tmp_path) in result.stderr


def test_a_model_folder_is_for_generate(tmp_path: Path, run: Path) -> None:
    load_model(run).save_pretrained(tmp_path / "exported")
    result = mila_here("sample", tmp_path / "exported")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "mila generate" in result.stderr


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path, run: Path) -> None:
    save_model(tmp_path / "weights", load_model(run))
    result = mila_here("sample", tmp_path / "weights")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "expected a model with a tokenizer" in result.stderr
