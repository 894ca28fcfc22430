"""``mila chat``: conversations through pipes and on terminals."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mila
from mila.cli.app import app
from mila.cli.text_options import Interruption
from mila.generation import GenerationConfig
from mila.generation.text import Conversation, TextTokenizer
from tests.cli.commands import documents, environment, mila_command
from tests.cli.terminal import END, INTERRUPT, Terminal
from tests.generation.chat_templates import TEMPLATES
from tests.generation.text_models import CHATML, write_model

QUESTIONS = ["quick fox", "the lazy dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", positions=120, chat_template=CHATML)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its answers go on until 60,000 positions are full."""
    path = tmp_path_factory.mktemp("models") / "endless"
    return write_model(path, positions=60_000, tokenizer_config={}, chat_template=CHATML)


def conversation(folder: Path, **options: Any) -> Conversation:
    network = mila.from_pretrained(folder, context_length=120)
    config = GenerationConfig(max_new_tokens=8)
    return Conversation(network, TextTokenizer.from_folder(folder), config, **options)


def chatted(folder: Path, given: str | bytes, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["chat", str(folder), "--max-new-tokens", "8", *arguments], input=given)


@pytest.mark.parametrize("end", ["", "\n", "\n\n  \n/exit\nnever asked\n"])
def test_every_line_of_a_pipe_is_a_question(end: str, folder: Path) -> None:
    result = chatted(folder, "\n".join(QUESTIONS) + end)
    talk = conversation(folder)
    answers = [talk.ask(question).completion.text for question in QUESTIONS]
    assert (result.exit_code, result.stdout) == (0, "".join(f"{answer}\n" for answer in answers))
    assert result.stderr.count("prompt tokens") == 2


def test_json_is_a_document_per_answer(folder: Path) -> None:
    result = chatted(folder, "\n".join(QUESTIONS), "--json", "--system", "it's", "--threads", "1")
    first, second = documents(result.stdout)
    talk = conversation(folder, system="it's")
    assert [first["text"], second["text"]] == [talk.ask(question).completion.text for question in QUESTIONS]
    assert (result.exit_code, result.stderr) == (0, "")
    assert (first["reused_tokens"], second["reused_tokens"] >= first["prompt_tokens"]) == (0, True)
    assert (first["dropped_turns"], second["dropped_turns"]) == (0, 0)
    assert first["notes"] == second["notes"] != []


def test_reset_forgets_all_but_the_system_message(folder: Path) -> None:
    result = chatted(folder, f"{QUESTIONS[0]}\n/reset\n{QUESTIONS[0]}\n", "--json", "--system", "it's")
    first, second = documents(result.stdout)
    assert first["tokens"] == second["tokens"]
    assert first["prompt_tokens"] == second["prompt_tokens"]


def test_a_full_context_drops_the_oldest_turns_and_says_so(folder: Path) -> None:
    lines = "\n".join(f"jumps over {number}" for number in range(6))
    result = chatted(folder, lines)
    assert (result.exit_code, result.stderr.count("left out the oldest turns") > 0) == (0, True)
    told = documents(chatted(folder, lines, "--json").stdout)
    assert sum(document["dropped_turns"] for document in told) > 0
    assert all(document["status"] in ("length", "stop") for document in told)


def test_a_message_that_starts_with_a_slash_is_written_with_two(folder: Path) -> None:
    (document,) = documents(chatted(folder, "//quick fox\n", "--json").stdout)
    assert document["text"] == conversation(folder).ask("/quick fox").completion.text


def test_help_says_the_commands(folder: Path) -> None:
    result = chatted(folder, "/help\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert all(each in result.stderr for each in ("/reset", "/exit", "Ctrl-C", "//", "typed"))


@pytest.mark.parametrize(
    ("given", "arguments", "code", "said"),
    [
        ("/foo bar\n", [], 1, "expected /help, /reset or /exit, got '/foo'; a message that starts with a slash"),
        ("/\n", [], 1, "got '/'"),
        ("", ["--system", "\udcff"], 1, "--system: expected UTF-8, got byte 0xff at 0"),
        ("fox " * 200, [], 1, "no room to answer"),
        (b"\xff\xfe\n", [], 1, "UTF-8"),
        ("", ["--context-length", "121"], 2, "at most the model's 120"),
        ("", ["--stop", ""], 2, "--stop"),
    ],
)
def test_what_is_refused(given: str | bytes, arguments: list[str], code: int, said: str, folder: Path) -> None:
    result = chatted(folder, given, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr.splitlines()[-1]


def test_a_template_that_is_missing_or_refuses_is_said_before_loading(folder: Path, tmp_path: Path) -> None:
    plain = chatted(write_model(tmp_path / "plain"), "hello")
    assert (plain.exit_code, plain.stdout, plain.stderr.count("\n")) == (1, "", 1)
    assert "expected a chat template" in plain.stderr
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}hello"
    refusing = chatted(write_model(tmp_path / "refusing", chat_template=source), "hello", "--system", "x")
    assert (refusing.exit_code, refusing.stdout, refusing.stderr.count("\n")) == (2, "", 1)
    assert "no system here" in refusing.stderr


def test_other_templates(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "sentencepiece", chat_template=TEMPLATES["instructions_in_brackets"])
    settings = {"eos_token": "</s>", "bos_token": "<s>"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    result = chatted(model, "\n".join(QUESTIONS), "--json")
    assert result.exit_code == 0
    assert len(documents(result.stdout)) == 2


# ---------------------------------------------------------------------- interruptions


def test_ctrl_c_before_a_text_begins_is_raised_and_later_asked_for() -> None:
    interruption = Interruption()
    pieces: list[str] = []
    listen = interruption.guard(pieces.append)
    before = signal.getsignal(signal.SIGINT)
    with interruption.watched():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert listen("a") and listen("")
        signal.raise_signal(signal.SIGINT)
        assert not listen("b")
        with pytest.raises(KeyboardInterrupt):  # pressed again
            signal.raise_signal(signal.SIGINT)
    assert (pieces, signal.getsignal(signal.SIGINT)) == (["a", "b"], before)


def test_ctrl_c_in_a_pipe_ends_it(endless: Path) -> None:
    command = mila_command("chat", endless, "--context-length", "60000")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"fox\ndog\n")
        process.stdin.flush()
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"cancelled" in said and b"Traceback" not in said
    assert said.count(b"prompt tokens") == 1


def test_a_narrow_terminal(endless: Path) -> None:
    """Ctrl-C ends one answer; the conversation goes on with what there was of it; Ctrl-D leaves."""
    with Terminal("chat", endless, "--context-length", "60000") as terminal:
        terminal.wait_for("> ")
        terminal.type("quick fox\r")
        terminal.wait_for("fox")
        terminal.wait_for("\n")
        terminal.wait_for("{")
        terminal.type(INTERRUPT)
        terminal.wait_for("cancelled")
        terminal.wait_for("> ")
        terminal.type("/reset\r")
        terminal.wait_for("forgotten")
        terminal.wait_for("> ")
        terminal.type(END)
        assert terminal.finish() == 0
    assert "Traceback" not in terminal.shown


def test_ctrl_c_at_the_prompt_leaves(folder: Path) -> None:
    with Terminal("chat", folder, "--max-new-tokens", "4") as terminal:
        terminal.wait_for("> ")
        terminal.type("fox " * 200 + "\r")
        terminal.wait_for("no room to answer")  # and the conversation goes on
        terminal.wait_for("> ")
        terminal.type("/foo\r")
        terminal.wait_for("expected /help, /reset or /exit")
        terminal.wait_for("> ")
        terminal.type("fox\r")
        terminal.wait_for("prompt tokens")
        terminal.wait_for("> ")
        assert terminal.interrupt_until_end() == 130
    assert "Traceback" not in terminal.shown
