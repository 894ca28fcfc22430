"""``mila generate``: a model continues a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mila.cli import text_options as options
from mila.cli.device_options import Device, Threads, execution_context
from mila.cli.display import print_json, print_note, print_text
from mila.cli.failures import INTERRUPTED, USAGE, leave, reports_errors
from mila.errors import DataError
from mila.generation import GenerationConfig, Status
from mila.generation.text import Prompt, TextCompletion, TextTokenizer, generate_text
from mila.generation.wording import counted
from mila.models import ModelFolder, read_model_folder

_STANDARD_INPUT = "-"


@reports_errors
def generate(
    folder: options.Folder,
    prompt: Annotated[
        str | None, typer.Argument(help="What the text starts with; - or none takes it from standard input.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="Tokens to write at most.")] = 200,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    context_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that memory is planned for; by default the prompt's and the new ones."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a user's message to a chat model, written out as it expects.")
    ] = False,
    tie_word_embeddings: options.TieWordEmbeddings = None,
    ignore_fields: options.IgnoreFields = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write what follows a prompt with a model you have: only the new text goes to standard output.

    Where the model's generation_config.json says do_sample, its temperature, top-k, top-p and min-p are the defaults,
    else the likeliest token is taken. Its repetition penalty always counts.
    """
    context = execution_context(device, threads)
    decisions = options.decisions(tie_word_embeddings, ignore_fields)
    found = read_model_folder(folder, **decisions)
    config = options.sampling_config(
        folder,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    stops = options.stop_strings(stop)
    tokenizer = TextTokenizer.from_folder(folder)
    text = _read_prompt(prompt)
    ids = tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
    positions = _positions(found, context_length, len(ids), max_new_tokens, quiet=as_json)
    model = options.load_model(folder, positions, context=context, quiet=as_json, **decisions)
    completion = _written(model, tokenizer, ids if chat else text, config, stops, quiet=as_json)
    _conclude(completion, model, as_json=as_json)
    if completion.status is Status.STOP and not (completion.tokens or chat or as_json) and tokenizer.chat_template:
        print_note("the model ended at once; it is a chat model: --chat writes the prompt out as a message to it")
    if completion.status is Status.CANCELLED:
        raise typer.Exit(INTERRUPTED)


def _read_prompt(prompt: str | None) -> str:
    """The prompt, or standard input without the end of its last line."""
    if prompt is not None and prompt != _STANDARD_INPUT:
        return options.checked_text(prompt, "prompt")
    if prompt is None and sys.stdin.isatty():
        raise leave(USAGE, "a prompt is missing: give it after the folder, or through a pipe")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        found = error.object[error.start]
        raise DataError(f"standard input: expected UTF-8, got byte 0x{found:02x} at {error.start}") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise DataError("standard input: expected a prompt, got nothing")
    return text


def _positions(found: ModelFolder, context_length: int | None, count: int, max_new_tokens: int, *, quiet: bool) -> int:
    """What memory is planned for, with a note where the model's context has no room for all new tokens.

    Raises:
        ConfigurationError: ``context_length`` is more than the model has.
        DataError: a prompt of ``count`` tokens is empty or has no room.
    """
    positions = options.positions_of(found, context_length, count + max_new_tokens)
    room = counted(positions, "token")
    if not count:
        raise DataError("prompt: expected at least one token, got none")
    if count > positions:
        raise DataError(f"prompt: expected at most the {room} of the context, got {count}")
    if context_length is None and positions < count + max_new_tokens and not quiet:
        print_note(f"note: the model's context is {room}: {counted(positions - count, 'new token')} at most")
    return positions


def _written(
    model: options.LoadedModel,
    tokenizer: TextTokenizer,
    prompt: Prompt,
    config: GenerationConfig,
    stops: list[str],
    *,
    quiet: bool,
) -> TextCompletion:
    """What follows ``prompt``, printed as it comes unless ``quiet``; Ctrl-C ends it where it is."""
    interruption = options.Interruption()
    on_text = interruption.guard(_nowhere if quiet else print_text)
    with interruption.watched():
        return generate_text(model.network, tokenizer, prompt, config, stop_strings=stops, on_text=on_text)


def _nowhere(piece: str) -> None:
    """The document has the text."""


def _conclude(completion: TextCompletion, model: options.LoadedModel, *, as_json: bool) -> None:
    if as_json:
        print_json(options.completion_document(completion, model))
    else:
        print_text("\n")
        print_note(options.completion_line(completion))
