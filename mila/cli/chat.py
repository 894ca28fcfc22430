"""``mila chat``: a conversation with a chat model."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from mila.cli import text_options as options
from mila.cli.device_options import Device, Threads, execution_context
from mila.cli.display import print_json, print_note, print_text
from mila.cli.failures import INTERRUPTED, leave, reports_errors
from mila.errors import DataError, MilaError
from mila.generation.text import Answer, Conversation, TextTokenizer
from mila.models import read_model_folder

#: Positions that are planned for where nothing is said; the model may have fewer.
_CONTEXT_LENGTH = 4096
_MARK = "> "
_HELP = (
    "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends an answer, //… is a message that starts with "
    "a slash; what you type during an answer is shown where it is typed, and read after it"
)


@reports_errors
def chat(
    folder: options.Folder,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer at most; by default as many as fit.")
    ] = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    context_length: Annotated[
        int | None,
        typer.Option(min=2, help=f"Tokens that memory is planned for; by default {_CONTEXT_LENGTH}, or the model's."),
    ] = None,
    tie_word_embeddings: options.TieWordEmbeddings = None,
    ignore_fields: options.IgnoreFields = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per answer.")] = False,
) -> None:
    """Talk with a chat model you have; from a pipe, every line is a question.

    /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends an answer, /help says so. A message that starts
    with a slash is written with two. What you type during an answer is shown where it is typed, and read after it. When
    the context is full, the oldest turns are left out, and it says so.

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
    opening = [] if system is None else [{"role": "system", "content": options.checked_text(system, "--system")}]
    tokenizer.encode_chat([*opening, {"role": "user", "content": "Hello"}])  # what the template refuses, it refuses now
    positions = options.positions_of(found, context_length, _CONTEXT_LENGTH)
    model = options.load_model(folder, positions, context=context, quiet=as_json, **decisions)
    conversation = Conversation(model.network, tokenizer, config, system=system, stop_strings=stops)
    _Chat(conversation, model, sys.stdin.isatty(), as_json).run()


@dataclass(frozen=True)
class _Chat:
    """Questions from standard input, answers on standard output, the rest on standard error."""

    conversation: Conversation
    model: options.LoadedModel
    is_interactive: bool
    as_json: bool

    def run(self) -> None:
        """Until the input ends."""
        if self.is_interactive and not self.as_json:
            print_note("/reset forgets, /exit leaves, /help says more")
        while (line := self._read()) is not None:
            question = line.strip()
            if question == "/exit":
                return
            if question == "/reset":
                self.conversation.reset()
                if self.is_interactive:
                    print_note("forgotten")
            elif question == "/help":
                print_note(_HELP)
            elif question:
                self._answer(question)

    def _answer(self, question: str) -> None:
        interruption = options.Interruption()
        try:
            message = _message(question)
            with interruption.watched():
                answer = self.conversation.ask(message, on_text=interruption.guard(self._write))
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
            print_note("\ninterrupted; the question is forgotten")
            return
        except MilaError as error:
            if not self.is_interactive:
                raise
            print_note(f"mila: {error}")
            return
        self._conclude(answer)
        if interruption.is_asked and not self.is_interactive:
            raise typer.Exit(INTERRUPTED)

    def _conclude(self, answer: Answer) -> None:
        completion = answer.completion
        if self.as_json:
            document = options.completion_document(completion, self.model)
            print_json(document | {"dropped_turns": answer.dropped_turns})
        else:
            print_text("\n")
            if answer.dropped_turns:
                print_note(f"the context is full: left out the oldest turns, {answer.dropped_turns} this time")
            print_note(options.completion_line(completion))

    def _write(self, piece: str) -> None:
        if not self.as_json:
            print_text(piece)

    def _read(self) -> str | None:
        """The next line; ``None`` at the end."""
        try:
            if not self.is_interactive:
                return sys.stdin.buffer.readline().decode("utf-8") or None
            return self._read_from_terminal()
        except UnicodeDecodeError as error:
            found = error.object[error.start]
            raise DataError(f"standard input: expected UTF-8, got byte 0x{found:02x}") from None
        except EOFError:
            print_note("")
            return None
        except KeyboardInterrupt:
            print_note("")
            raise leave(INTERRUPTED, "interrupted") from None

    def _read_from_terminal(self) -> str | None:
        """With line editing where Python has it; the mark goes to standard error when the answers go to a file."""
        if sys.stdout.isatty() and not self.as_json:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (input() edits lines with it)
            return input(_MARK)
        print(_MARK, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline() or None


def _message(question: str) -> str:
    """What is meant: two slashes at the start are one, and one is for commands.

    Raises:
        DataError: no such command.
    """
    if question.startswith("//"):
        return question[1:]
    if question.startswith("/"):
        command = question.split()[0]
        raise DataError(
            f"expected /help, /reset or /exit, got {command!r:.40}; a message that starts with a slash is written with "
            f"two: //…"
        )
    return question
