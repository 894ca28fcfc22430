"""``mila embed``: texts as embeddings, and how similar they are."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mila.cli import text_options as options
from mila.cli.device_options import Device, Threads, execution_context
from mila.cli.display import loading_progress, print_json, print_note, print_text, without_controls
from mila.cli.failures import USAGE, leave, reports_errors
from mila.devices import ExecutionContext
from mila.errors import CheckpointError, ConfigurationError, DataError
from mila.generation.text import TextTokenizer
from mila.generation.wording import counted
from mila.kernels.signatures import Array
from mila.models import ClipTextEncoder, ClipTextFolder, read_clip_text_folder
from mila.models.clip_embedding import EncodedText, TextEmbeddings, embed_texts, encode_text
from mila.serialization import save_tensors, write_file_atomically

_STANDARD_INPUT = "-"
_ENDINGS = (".npy", ".safetensors")
#: Of a text, of a vector, and of a matrix, what a table shows at most.
_CHARACTERS, _VALUES, _ROWS = 48, 4, 12
#: Texts whose similarities a document, and a file, has at most: 65,536 numbers, and 256 MiB.
_COMPARED_IN_JSON, _COMPARED_IN_FILE = 256, 8192
_UNCOMPARED = (
    f"no similarities: JSON has those of at most {_COMPARED_IN_JSON} texts, a .safetensors file of at most "
    f"{_COMPARED_IN_FILE:,}"
)
_WIDTH = 160


@reports_errors
def embed(
    folder: options.Folder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts; - or none takes them from standard input, one a line. One that begins with - goes after --.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the embeddings to this .npy or .safetensors file, one row a text; the latter takes the "
            "similarities too.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Embeddings as computed, not of length 1.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts that are computed together at most.")] = 16,
    ignore_fields: options.IgnoreFields = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Turn texts into embeddings with the text encoder of a CLIP model, and compare them by their cosines.

    Embeddings are projected into the space that texts share with images where the model has that projection. Texts with
    more tokens than the model takes are cut.
    """
    context = execution_context(device, threads)
    _check_output(output)
    found = read_clip_text_folder(folder, ignore_fields=ignore_fields or [])
    tokenizer = TextTokenizer.from_folder(folder)
    lines = _read_texts(texts)
    encoded = [encode_text(tokenizer, line, found.config, f"text {number}") for number, line in enumerate(lines, 1)]
    if not as_json:
        _note_truncated(encoded, found.config.max_seq_len)
    encoder = _load(found, encoded, batch_size, context, quiet=as_json)
    with loading_progress(quiet=as_json, what="embedding") as draw:
        made = embed_texts(encoder, encoded, pad_token_id=found.pad_token_id, on_progress=draw)
    vectors = made.vectors if raw else made.normalized
    saved = () if output is None else _write(output, vectors, made)
    if as_json:
        print_json(_document(found, encoder, encoded, made, vectors, output=output, saved=saved, raw=raw))
        return
    print_text(_tables(lines, encoded, made, vectors))
    if output is not None:
        also = " and their similarities" if "similarities" in saved else ""
        print_note(f"{output}: {counted(len(vectors), 'embedding')} of {vectors.shape[1]} values{also}")
        if not also and output.suffix == ".safetensors":
            print_note(f"note: {_UNCOMPARED}")


def _check_output(output: Path | None) -> None:
    """Refuse before anything is computed what could not be written."""
    if output is None:
        return
    if output.suffix not in _ENDINGS:
        raise ConfigurationError(f"--output: expected a file that ends in {' or '.join(_ENDINGS)}, got {output.name!r}")
    if not output.absolute().parent.is_dir():
        raise CheckpointError(f"{output}: expected a folder to write into, got none")


def _read_texts(texts: list[str] | None) -> list[str]:
    """The texts given, or the lines of standard input: every line is one, so that rows are lines."""
    if texts and texts != [_STANDARD_INPUT]:
        return [options.checked_text(text, f"text {number}") for number, text in enumerate(texts, 1)]
    if not texts and sys.stdin.isatty():
        raise leave(USAGE, "texts are missing: give them after the folder, or through a pipe, one a line")
    try:
        content = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        found = error.object[error.start]
        raise DataError(f"standard input: expected UTF-8, got byte 0x{found:02x} at {error.start}") from None
    if not content:
        raise DataError("standard input: expected texts, one a line, got nothing")
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]


def _note_truncated(encoded: list[EncodedText], limit: int) -> None:
    cut = [number for number, text in enumerate(encoded, 1) if text.is_truncated]
    if cut:
        shown = ", ".join(map(str, cut[:_ROWS])) + (", ..." if len(cut) > _ROWS else "")
        print_note(f"note: the model takes {counted(limit, 'token')}: cut {counted(len(cut), 'text')}, number {shown}")


def _load(
    found: ClipTextFolder, encoded: list[EncodedText], batch_size: int, context: ExecutionContext, *, quiet: bool
) -> ClipTextEncoder:
    """The encoder, built for the longest text and no more of them than there are."""
    with loading_progress(quiet=quiet) as draw:
        encoder = found.load(
            length=max(len(text.ids) for text in encoded),
            batch_size=min(batch_size, len(encoded)),
            device=context,
            on_progress=draw,
        )
    if not quiet:
        for note in _notes(encoder):
            print_note(f"note: {note}")
    return encoder


def _notes(encoder: ClipTextEncoder) -> tuple[str, ...]:
    return () if encoder.pretrained is None else encoder.pretrained.report.notes


def _write(output: Path, vectors: Array, made: TextEmbeddings) -> tuple[str, ...]:
    """Write the whole file or, where that fails, leave what was there before; return what it has."""
    tensors = {"embeddings": vectors}
    if output.suffix == ".npy":
        write_file_atomically(output, lambda file: np.save(file, vectors, allow_pickle=False))
    else:
        if len(vectors) <= _COMPARED_IN_FILE:
            tensors["similarities"] = made.similarities()
        save_tensors(output, tensors)
    return tuple(tensors)


def _document(
    found: ClipTextFolder,
    encoder: ClipTextEncoder,
    encoded: list[EncodedText],
    made: TextEmbeddings,
    vectors: Array,
    *,
    output: Path | None,
    saved: tuple[str, ...],
    raw: bool,
) -> dict[str, Any]:
    """All of it for machines; the numbers themselves where no file has them."""
    numbers: dict[str, Any] = {} if output is None else {"output": str(output)}
    notes = list(_notes(encoder))
    if "embeddings" not in saved:
        numbers["embeddings"] = vectors.tolist()
    if "similarities" not in saved and len(vectors) <= _COMPARED_IN_JSON:
        numbers["similarities"] = made.similarities().tolist()
    elif "similarities" not in saved:
        notes.append(_UNCOMPARED)
    return {
        "model": str(found.path),
        "is_projected": encoder.text_config.projection_dim is not None,
        "is_normalized": not raw,
        "dimension": vectors.shape[1],
        "tokens": [len(text.ids) for text in encoded],
        "is_truncated": [text.is_truncated for text in encoded],
        "norms": made.norms.tolist(),
        **numbers,
        "notes": notes,
    }


def _tables(lines: list[str], encoded: list[EncodedText], made: TextEmbeddings, vectors: Array) -> str:
    """A row for each text, and the cosines between the first of them."""
    texts = Table(box=box.SIMPLE)
    for title in ("", "text", "tokens", "norm", f"first of {vectors.shape[1]} values"):
        texts.add_column(title, justify="left" if title == "text" else "right", no_wrap=True)
    for number, (line, text, norm, vector) in enumerate(zip(lines, encoded, made.norms, vectors, strict=True), 1):
        values = "  ".join(f"{value:7.4f}" for value in vector[:_VALUES])
        texts.add_row(str(number), Text(_shortened(line)), str(len(text.ids)), f"{norm:.4f}", values)
    shown = TextEmbeddings(made.vectors[:_ROWS])
    cosines = Table(box=box.SIMPLE, title="cosine similarity", title_justify="left", title_style="")
    for title in ("", *(str(number) for number in range(1, len(shown.vectors) + 1))):
        cosines.add_column(title, justify="right", no_wrap=True)
    for number, row in enumerate(shown.similarities(), 1):
        cosines.add_row(str(number), *(f"{value:.4f}" for value in row))
    page = io.StringIO()
    console = Console(file=page, width=_WIDTH)
    console.print(texts)
    if len(vectors) > 1:
        console.print(cosines)
    if len(vectors) > _ROWS:
        console.print(f"the first {_ROWS} texts; a .safetensors file has more", markup=False, highlight=False)
    return "\n".join(row.rstrip() for row in page.getvalue().splitlines() if row.strip()) + "\n"


def _shortened(line: str) -> str:
    text = without_controls(line).replace("\t", " ")
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 3] + "..."
