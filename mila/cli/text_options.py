"""What ``mila generate`` and ``mila chat`` have in common: options, loading, and what they say about an answer."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import mila
from mila.cli.display import loading_progress, print_note
from mila.core.lifecycle import execution_of
from mila.devices import ExecutionContext
from mila.errors import ConfigurationError, DataError
from mila.generation import GenerationConfig
from mila.generation.text import TextCompletion, recommended_sampling
from mila.generation.wording import counted
from mila.memory import format_bytes
from mila.models import LanguageModel, ModelFolder

Folder = Annotated[Path, typer.Argument(help="Model folder: config.json, safetensors files, tokenizer.json.")]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="0 takes the likeliest token each time; by default the model's, or 0.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw among so many likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Draw among the likeliest tokens of this probability together.")]
MinP = Annotated[float | None, typer.Option(help="Draw among tokens this many times as likely as the likeliest.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1, tokens that occurred become less likely.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed writes the same text.")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="<str>", help="End before this text; may be given several times."),
]
TieWordEmbeddings = Annotated[
    bool | None,
    typer.Option(
        "--tie-word-embeddings/--no-tie-word-embeddings",
        help="Whether the head computes with the token table, where config.json and the weights contradict each other.",
    ),
]
IgnoreFields = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore-fields",
        metavar="<str>",
        help="A field of config.json that Mila does not know and that changes nothing; may be given several times.",
    ),
]
_FILTERS = ("top_k", "top_p", "min_p")


def sampling_config(folder: Path, **given: Any) -> GenerationConfig:
    """What the model recommends, and what was given on the command line instead.

    Raises:
        CheckpointError: the recommendation is malformed.
        pydantic.ValidationError: an option out of range, or a filter where the likeliest token is taken anyway.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    recommended = recommended_sampling(folder)
    if chosen.get("temperature") == 0:
        recommended = {name: value for name, value in recommended.items() if name not in _FILTERS}
    return GenerationConfig(**(recommended | chosen))


def decisions(tie_word_embeddings: bool | None, ignore_fields: list[str] | None) -> dict[str, Any]:
    """What was decided about a model folder, as :func:`mila.models.read_model_folder` takes it."""
    return {"tie_word_embeddings": tie_word_embeddings, "ignore_fields": ignore_fields or []}


def stop_strings(given: list[str] | None) -> list[str]:
    """Of ``--stop``.

    Raises:
        ConfigurationError: an empty one.
        DataError: one that is not UTF-8.
    """
    if given and not all(given):
        raise ConfigurationError("--stop: expected a text, got an empty one")
    return [checked_text(text, "--stop") for text in given or []]


def checked_text(text: str, name: str) -> str:
    """An argument; Python puts half surrogates in the place of bytes that are no UTF-8.

    Raises:
        DataError: there are some.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        before = len(text[: error.start].encode("utf-8"))
        code = ord(text[error.start])
        found = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        raise DataError(f"{name}: expected UTF-8, got {found} at {before}") from None
    return text


def positions_of(found: ModelFolder, context_length: int | None, wanted: int) -> int:
    """How many positions to build: as asked, or as many as are wanted and the model has.

    Raises:
        ConfigurationError: more than the model has.
    """
    limit = found.config.max_seq_len
    if context_length is None:
        return min(wanted, limit)
    if context_length > limit:
        raise ConfigurationError(f"--context-length: expected at most the model's {limit}, got {context_length}")
    return context_length


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready.

    Attributes:
        folder: where it is from.
        network: built for inference.
        seconds: that loading took.
        reserved_bytes: that its plan takes.
        notes: what loading has to say.
    """

    folder: Path
    network: LanguageModel[Any]
    seconds: float
    reserved_bytes: int
    notes: tuple[str, ...]


def load_model(
    folder: Path, context_length: int, *, context: ExecutionContext, quiet: bool, **decisions: Any
) -> LoadedModel:
    """Load a model folder, to run in ``context``; progress and one line go to standard error, unless ``quiet``.

    ``decisions`` are those of :func:`mila.from_pretrained`.
    """
    started = time.perf_counter()
    with loading_progress(quiet=quiet) as draw:
        network = mila.from_pretrained(
            folder,
            context_length=context_length,
            device=context,
            on_progress=draw,
            **decisions,
        )
    seconds = time.perf_counter() - started
    reserved = execution_of(network, "generation").planned.plan.reserved_bytes
    notes = () if network.pretrained is None else network.pretrained.report.notes
    if not quiet:
        for note in notes:
            print_note(f"note: {note}")
        where = "" if context.device.is_host else f" on {context.device_id}"
        room = counted(context_length, "token")
        print_note(f"loaded in {seconds:.2f} s, {format_bytes(reserved)} reserved{where} for {room}")
    return LoadedModel(folder, network, seconds, reserved, notes)


class Interruption:
    """Ctrl-C while a text is written: before its first token it is raised, later the text ends where it is.

    Pressed again, it is raised at once.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._has_begun = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Listen in this block, which only the main thread can run."""
        previous = signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def guard(self, write: Callable[[str], None]) -> Callable[[str], bool]:
        """``on_text`` that writes, and cancels once it is asked to."""

        def on_text(piece: str) -> bool:
            self._has_begun = True
            if piece:
                write(piece)
            return not self.is_asked

        return on_text

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked or not self._has_begun:
            raise KeyboardInterrupt
        self.is_asked = True


def completion_document(completion: TextCompletion, model: LoadedModel) -> dict[str, Any]:
    """A completion for machines."""
    return {
        "model": str(model.folder),
        "text": completion.text,
        "status": completion.status.value,
        "prompt_tokens": completion.prompt_tokens,
        "reused_tokens": completion.reused_tokens,
        "new_tokens": len(completion.tokens),
        "tokens": list(completion.tokens),
        "prefill_seconds": completion.prefill_seconds,
        "decode_seconds": completion.decode_seconds,
        "tokens_per_second": completion.tokens_per_second,
        "load_seconds": model.seconds,
        "reserved_bytes": model.reserved_bytes,
        "notes": list(model.notes),
    }


def completion_line(completion: TextCompletion) -> str:
    """A completion in numbers, for people."""
    reused = f" ({completion.reused_tokens} known)" if completion.reused_tokens else ""
    rate = completion.tokens_per_second
    speed = "" if rate is None else f" at {rate:.1f} tokens/s"
    return (
        f"{counted(completion.prompt_tokens, 'prompt token')}{reused} in {completion.prefill_seconds:.2f} s, "
        f"{len(completion.tokens)} new{speed}, {completion.status.value.replace('_', ' ')}"
    )
