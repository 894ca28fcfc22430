"""``mila train``: what it prints, when it refuses, and that it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from mila.devices import ExecutionContext
from mila.training import load_model, read_training_state
from tests.cli.commands import TINY, documents, environment, mila_command, mila_here, mila_process, steps_of


def test_the_plan_comes_before_the_build(tmp_path: Path, text: Path) -> None:
    result = mila_here("train", text, "--out", tmp_path / "run", *TINY)
    assert result.exit_code == 0, result.output
    shown = result.stdout
    for word in ("parameters", "transient", "reserved", "Largest buffers", "fullest step", "fits: needs"):
        assert word in shown[: shown.index("built")]
    assert "step 3: validation loss" in shown
    assert (tmp_path / "run" / "step-00000006").is_dir()
    assert result.stderr == "", "no bar where there is no terminal"


def test_plan_only_builds_nothing(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionContext, "allocate", None)
    result = mila_here("train", text, "--out", tmp_path / "run", "--plan-only", *TINY)
    assert (result.exit_code, (tmp_path / "run").exists()) == (0, False), result.output
    assert "built" not in result.stdout


def test_a_plan_as_json_is_one_document(tmp_path: Path, text: Path) -> None:
    result = mila_here("train", text, "--out", tmp_path / "run", "--plan-only", "--json", *TINY)
    plan = json.loads(result.stdout)
    assert plan["fits"] is True
    arenas = [size for size in plan["arenas"].values() if size]
    assert plan["reserved_bytes"] == sum(arenas) + 64 * len(arenas)
    assert len(plan["largest_buffers"]) == 5


@pytest.mark.parametrize("options", [[], ["--plan-only"]])
def test_what_does_not_fit_is_exit_code_3(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(ExecutionContext, "available_bytes", lambda self: 1000)
    result = mila_here("train", text, "--out", tmp_path / "run", *TINY, *options)
    assert (result.exit_code, (tmp_path / "run").exists()) == (3, False)
    assert "reserved" in result.stdout
    assert result.stderr.startswith("mila: does not fit: needs ")
    assert result.stderr.endswith(" are available\n")


def test_json_is_a_document_on_every_line(tmp_path: Path, text: Path) -> None:
    result = mila_here("train", text, "--out", tmp_path / "run", "--json", *TINY)
    events = [each["event"] for each in documents(result.stdout)]
    assert events[:2] == ["plan", "build"]
    assert events[-1] == "outcome"
    assert (events.count("step"), events.count("validation")) == (6, 2)
    assert documents(result.stdout)[-1]["last_checkpoint"] == str(tmp_path / "run" / "step-00000006")


@pytest.mark.parametrize(
    "options",
    [
        ["--model", "llama", "--kv-heads", "1", "--hidden-dim", "12"],
        ["--dropout", "0.2", "--accumulation", "2", "--schedule", "linear"],
        ["--tokenizer", "byte", "--clip", "0", "--schedule", "constant"],
    ],
)
def test_a_resumed_command_goes_on_bit_for_bit(tmp_path: Path, text: Path, options: list[str]) -> None:
    """Interrupted after three steps of a schedule of six, by leaving out the later checkpoints."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    arguments = [*TINY, *options, "--checkpoint-every", "1", "--keep-last", "9"]
    expected = mila_here("train", text, "--out", whole, "--json", *arguments)
    assert expected.exit_code == 0, expected.output
    parts.mkdir()
    (whole / "step-00000003").rename(parts / "step-00000003")
    resumed = mila_process("train", text, "--out", parts, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert steps_of(resumed.stdout) == steps_of(expected.stdout)[3:]


def test_a_resumed_run_can_be_made_longer(tmp_path: Path, text: Path) -> None:
    mila_here("train", text, "--out", tmp_path, *TINY)
    result = mila_here("train", text, "--out", tmp_path, "--resume", "--steps", "8")
    assert result.exit_code == 0, result.output
    assert "going on from step 6" in result.stdout
    assert read_training_state(tmp_path / "step-00000008").config.steps == 8


def test_ctrl_c_leaves_a_checkpoint_and_exit_code_130(tmp_path: Path, text: Path) -> None:
    arguments = [*TINY, "--steps", "100000", "--validate-every", "100000", "--checkpoint-every", "100000"]
    command = mila_command("train", text, "--out", tmp_path, "--json", *arguments)
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while json.loads(process.stdout.readline())["event"] != "step":
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        said = process.stderr.read()
    outcome = documents(rest)[-1]
    assert (process.returncode, outcome["event"], outcome["interrupted"]) == (130, "outcome", True)
    assert said.splitlines() == [f"mila: interrupted; --resume goes on from {outcome['last_checkpoint']}"]
    assert read_training_state(outcome["last_checkpoint"]).update_count == outcome["step"]


def test_folders_stand_for_the_files_in_them(tmp_path: Path) -> None:
    for name, content in {"a.txt": "abc" * 60, "b/c.txt": "def" * 60, "d.md": "§" * 60}.items():
        (tmp_path / "texts" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "texts" / name).write_text(content)
    result = mila_here("train", tmp_path / "texts", "--out", tmp_path / "run", *TINY)
    assert result.exit_code == 0, result.output
    assert load_model(tmp_path / "run").config.vocab_size == len("abcdef\n")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--heads", "3"], 2, "num_heads 3 must divide embedding_dim 8"),
        (["--learning-rate", "-1"], 2, "--learning-rate: Input should be greater than 0"),
        (["--weight-decay", "nan"], 2, "--weight-decay: Input should be"),
        (["--kv-heads", "2"], 2, "--kv-heads: is an option of --model llama"),
        (["--model", "llama", "--dropout", "0.1"], 2, "--dropout: is an option of --model gpt"),
        (["--validation-fraction", "2"], 2, "validation_fraction: expected a number between 0 and 1"),
        (["--sequence-length", "5000"], 1, "tokens: expected at least"),
        (["--resume"], 2, "leave out --width, --layers"),
    ],
)
def test_options_that_make_no_sense_are_one_line(
    tmp_path: Path, text: Path, options: list[str], code: int, said: str
) -> None:
    result = mila_here("train", text, "--out", tmp_path / "run", *TINY, *options)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.output
    assert result.stderr.startswith("mila: ")
    assert said in result.stderr
    assert not (tmp_path / "run").exists()


def test_errors_of_files_are_one_line_without_a_traceback(tmp_path: Path, text: Path, run: Path) -> None:
    binary, other = tmp_path / "binary.txt", tmp_path / "other.txt"
    binary.write_bytes(b"\xff\xfe" * 99)
    other.write_text(text.read_text().replace("fox", "dog"))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    cases: list[tuple[list[str | Path], str]] = [
        (["nowhere.txt", "--out", tmp_path / "run"], "nowhere.txt: expected a readable text file"),
        ([binary, "--out", tmp_path / "run"], "expected UTF-8, got byte 0xFF"),
        ([text, "--out", run, *TINY], "has checkpoints; resume from them"),
        ([text, "--out", tmp_path / "run", "--resume"], "expected a folder with a complete checkpoint, got none"),
        ([other, "--out", run, "--resume"], "data.training_sha256 is"),
        ([text, "--out", blocked / "run", *TINY], "blocked"),
    ]
    for arguments, said in cases:
        result = mila_here("train", *arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert said in result.stderr


def test_the_bar_is_drawn_on_a_terminal_and_nowhere_else(tmp_path: Path, text: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = mila_command("train", text, "--out", tmp_path / "run", *TINY)
    done = subprocess.run(command, env=environment(TERM="xterm"), stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    drawn = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "tokens/s" in drawn
    assert "\x1b" not in done.stdout.decode()
    assert "step 3: validation loss" in done.stdout.decode()
