"""``mila generate``: text from model folders, through arguments, pipes and terminals."""

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
from mila.cli.device_options import execution_context
from mila.cli.text_options import load_model
from mila.devices import ExecutionContext
from mila.generation import GenerationConfig
from mila.generation.text import TextCompletion, TextTokenizer, generate_text
from tests.cli.commands import environment, mila_command, mila_here
from tests.cli.terminal import INTERRUPT, Terminal
from tests.generation.text_models import CHATML, write_model

PROMPT = "the quick brown"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 96 positions."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny", chat_template=CHATML)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that goes on until its 60,000 positions are full."""
    return write_model(tmp_path_factory.mktemp("models") / "endless", positions=60_000, tokenizer_config={})


def expected(folder: Path, prompt: str | list[int] = PROMPT, **fields: Any) -> TextCompletion:
    network = mila.from_pretrained(folder, context_length=96)
    config = GenerationConfig(**({"max_new_tokens": 20} | fields))
    return generate_text(network, TextTokenizer.from_folder(folder), prompt, config)


def generated(folder: Path, *arguments: str, prompt: str | None = PROMPT, given: str | bytes | None = None) -> Any:
    """The result, with 20 tokens."""
    prompts = [] if prompt is None else [prompt]
    command = ["generate", str(folder), *prompts, "--max-new-tokens", "20", *arguments]
    return CliRunner().invoke(app, command, input=given)


# ---------------------------------------------------------------------- what is written


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ([], {}),
        (["--temperature", "1", "--seed", "3"], {"temperature": 1.0, "seed": 3}),
        (["--temperature", "2", "--top-k", "4", "--min-p", "0.1"], {"temperature": 2.0, "top_k": 4, "min_p": 0.1}),
        (["--temperature", "1", "--top-p", "0.5"], {"temperature": 1.0, "top_p": 0.5}),
        (["--repetition-penalty", "1.7"], {"repetition_penalty": 1.7}),
    ],
)
def test_only_the_new_text_goes_to_standard_output(arguments: list[str], fields: dict[str, Any], folder: Path) -> None:
    result = generated(folder, *arguments)
    completion = expected(folder, **fields)
    assert (result.exit_code, result.stdout) == (0, completion.text + "\n")
    assert f"{len(completion.tokens)} new at " in result.stderr
    assert "tokens/s" in result.stderr
    assert "reserved" in result.stderr


def test_json_is_one_document_and_nothing_else(folder: Path) -> None:
    result = generated(folder, "--json")
    completion = expected(folder)
    document = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    assert document["text"] == completion.text
    assert document["tokens"] == list(completion.tokens)
    assert document["status"] == completion.status.value == "length"
    assert document["prompt_tokens"] == completion.prompt_tokens
    assert document["model"] == str(folder)
    assert [note for note in document["notes"] if "have no token in tokenizer.json" in note]
    assert min(document[name] for name in ("prefill_seconds", "decode_seconds", "load_seconds", "reserved_bytes")) > 0


@pytest.mark.parametrize(("prompt", "given"), [(None, PROMPT + "\n"), ("-", PROMPT), ("-", PROMPT + "\r\n")])
def test_a_prompt_from_standard_input(prompt: str | None, given: str, folder: Path) -> None:
    assert generated(folder, prompt=prompt, given=given).stdout == generated(folder).stdout


def test_a_question_to_a_chat_model(folder: Path) -> None:
    ids = TextTokenizer.from_folder(folder).encode_chat([{"role": "user", "content": PROMPT}])
    assert generated(folder, "--chat").stdout == expected(folder, ids).text + "\n" != generated(folder).stdout


def test_characters_that_the_output_lacks_are_replaced(folder: Path) -> None:
    result = CliRunner(charset="ascii").invoke(app, ["generate", str(folder), PROMPT, "--max-new-tokens", "20"])
    assert (result.exit_code, result.stdout) == (0, expected(folder).text.encode("ascii", "replace").decode() + "\n")
    assert "?" in result.stdout


def test_no_tokens_are_no_text(folder: Path) -> None:
    result = CliRunner().invoke(app, ["generate", str(folder), PROMPT, "--max-new-tokens", "0"])
    assert (result.exit_code, result.stdout) == (0, "\n")


def test_a_chat_model_that_ends_at_once_is_explained(folder: Path, tmp_path: Path) -> None:
    ending = {"eos_token_id": list(expected(folder).tokens[:1])}
    chatty = write_model(tmp_path / "chatty", chat_template=CHATML, generation_config=ending)
    plain = write_model(tmp_path / "plain", generation_config=ending)
    hinted, silent, document = generated(chatty), generated(plain), generated(chatty, "--json")
    assert (hinted.exit_code, hinted.stdout, silent.stdout) == (0, "\n", "\n")
    assert "--chat" in hinted.stderr
    assert "--chat" not in silent.stderr
    assert (json.loads(document.stdout)["new_tokens"], document.stderr) == (0, "")


def test_stop_strings(folder: Path) -> None:
    text = expected(folder).text
    result = generated(folder, "--stop", "never", "--stop", text[5:8], "--json")
    document = json.loads(result.stdout)
    assert (document["text"], document["status"]) == (text[: text.index(text[5:8])], "stop")


def test_the_model_recommends_how_to_sample(tmp_path: Path) -> None:
    recommended = {"do_sample": True, "temperature": 1.3, "top_k": 9}
    folder = write_model(tmp_path / "model", generation_config=recommended)
    assert generated(folder).stdout == expected(folder, temperature=1.3, top_k=9).text + "\n"
    assert generated(folder, "--temperature", "0").stdout == expected(folder).text + "\n"


def test_memory_is_planned_for_what_is_needed(folder: Path) -> None:
    small, large = (
        json.loads(generated(folder, "--json", *arguments).stdout)["reserved_bytes"]
        for arguments in ([], ["--context-length", "96"])
    )
    assert small < large
    full = json.loads(generated(folder, "--json", "--max-new-tokens", "500").stdout)
    assert (full["status"], full["new_tokens"] + full["prompt_tokens"]) == ("context_limit", 96)


def test_a_plan_that_the_models_context_cuts_is_said_once(folder: Path) -> None:
    count = len(TextTokenizer.from_folder(folder).encode(PROMPT))
    cut = generated(folder, "--max-new-tokens", "10000000").stderr
    assert cut.count("note: the model's context is 96 tokens") == 1
    assert f"{96 - count} new tokens at most" in cut
    for arguments in ([], ["--max-new-tokens", str(96 - count)], ["--max-new-tokens", "500", "--context-length", "50"]):
        assert "context is" not in generated(folder, *arguments).stderr


def test_one_token_is_no_tokens(folder: Path) -> None:
    prompt = TextTokenizer.from_folder(folder).decode(TextTokenizer.from_folder(folder).encode(PROMPT)[:1])
    one = generated(folder, "--max-new-tokens", "0", prompt=prompt).stderr
    assert "reserved for 1 token\n" in one
    assert one.splitlines()[-1].startswith("1 prompt token in ")


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_threads(threads: int | None, folder: Path) -> None:
    context = execution_context("cpu", threads)
    loaded = load_model(folder, 8, context=context, quiet=True)
    assert loaded.network.get_execution_context() is context
    assert context.threads == ExecutionContext("cpu", threads=threads).threads
    options = [] if threads is None else ["--threads", str(threads)]
    assert generated(folder, *options).stdout == expected(folder).text + "\n"


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--temperature", "inf"], 2, "--temperature: Input should be a finite number, got inf"),
        (["--top-p", "1.5"], 2, "--top-p: "),
        (["--repetition-penalty", "0"], 2, "--repetition-penalty: "),
        (["--top-k", "5"], 2, "--top-k: expected only with a temperature above 0, got 5"),
        (["--min-p", "0.1", "--temperature", "0"], 2, "--min-p: expected only with a temperature above 0, got 0.1"),
        (["--stop", ""], 2, "--stop"),
        (["--stop", "é\udcff"], 1, "--stop: expected UTF-8, got byte 0xff at 2"),
        (["--context-length", "97"], 2, "at most the model's 96"),
        (["--context-length", "2"], 1, "expected at most the 2 tokens"),
    ],
)
def test_options_without_meaning(arguments: list[str], code: int, said: str, folder: Path) -> None:
    result = generated(folder, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("prompt", "given", "said"),
    [
        ("", None, "at least one token"),
        ("-", b"\xff\xfe", "UTF-8"),
        (None, b"", "standard input: expected a prompt, got nothing"),
        ("-", b"\n", "standard input: expected a prompt, got nothing"),
        ("the " * 100, None, "at most the 96 tokens"),
        ("é\udcff", None, "prompt: expected UTF-8, got byte 0xff at 2"),
        ("\ud83d", None, "prompt: expected UTF-8, got U+D83D at 0"),
    ],
)
def test_prompts_that_are_refused(prompt: str | None, given: bytes | None, said: str, folder: Path) -> None:
    result = generated(folder, prompt=prompt, given=given)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", None, "tokenizer.json"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        ("config.json", None, "config.json"),
        ("config.json", b'{"model_type": "rnn"}', "rnn"),
        ("model.safetensors", b"\x08\x00", "model.safetensors"),
        ("chat_template.jinja", b"{% for %}", "chat_template.jinja"),
        ("generation_config.json", b'{"do_sample": true, "temperature": "hot"}', "generation_config.json"),
    ],
)
def test_a_folder_with_a_broken_file(file: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", chat_template=CHATML) / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    result = generated(tmp_path / "model", "--chat")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert said in result.stderr


def test_what_a_folder_says_cannot_move_the_cursor(tmp_path: Path) -> None:
    """Errors quote files of the model, which may come from anywhere."""
    source = "{{ raise_exception('\x1b[2J\x9b31m no') }}"
    result = generated(write_model(tmp_path / "model", chat_template=source), "--chat")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "\\x1b[2J\\x9b31m no" in result.stderr
    assert "\x1b" not in result.stderr


def test_no_folder_and_no_template(folder: Path, tmp_path: Path) -> None:
    absent = generated(tmp_path / "absent")
    assert (absent.exit_code, absent.stderr.count("\n")) == (1, 1)
    plain = generated(write_model(tmp_path / "plain"), "--chat")
    assert (plain.exit_code, "expected a chat template" in plain.stderr) == (1, True)
    assert mila_here("generate").exit_code == 2


# ---------------------------------------------------------------------- processes


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = mila_command("generate", folder, PROMPT, "--max-new-tokens", "59000", *arguments)
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_keeps_the_text_so_far(endless: Path) -> None:
    with started(endless) as process:
        assert process.stdout is not None
        first = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=60)
    whole = expected(endless, max_new_tokens=60).text.encode()
    text = first + rest
    assert (process.returncode, text.endswith(b"\n")) == (130, True)
    assert whole.startswith(text[:20]) and len(first) == 20
    assert b"cancelled" in said
    assert b"Traceback" not in said


def test_a_closed_pipe_ends_quietly(endless: Path) -> None:
    with started(endless) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert [line for line in said.splitlines() if not line.startswith((b"note:", b"loaded in"))] == []


def test_a_narrow_terminal(endless: Path) -> None:
    """With progress, the text, Ctrl-C, and numbers; what the model writes cannot move the cursor."""
    with Terminal("generate", endless, PROMPT, "--max-new-tokens", "59000", "--temperature", "1") as terminal:
        terminal.wait_for("reserved for")
        terminal.wait_for("\\x")
        terminal.type(INTERRUPT)
        terminal.wait_for("cancelled")
        assert terminal.finish() == 130
    text = terminal.shown.split("tokens", 1)[1]
    assert "\x1b" not in text
    assert "Traceback" not in terminal.shown


def test_a_terminal_without_a_prompt(folder: Path) -> None:
    with Terminal("generate", folder) as terminal:
        terminal.wait_for("a prompt is missing")
        assert terminal.finish() == 2


# ---------------------------------------------------------------------- what the user decides


def test_what_an_error_asks_to_decide_can_be_decided_here(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "frobnicate": 1}))
    refused = generated(folder)
    assert (refused.exit_code, "pass --ignore-fields frobnicate" in refused.stderr) == (1, True)
    assert generated(folder, "--ignore-fields", "frobnicate").exit_code == 0
    has_head = not fields["tie_word_embeddings"]
    decided = "--tie-word-embeddings" if has_head else "--no-tie-word-embeddings"
    other = generated(folder, "--ignore-fields", "frobnicate", decided)
    assert (other.exit_code, "lm_head" in other.stderr) == (0 if has_head else 1, True)
