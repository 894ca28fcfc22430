"""Texts as embeddings: tokens, padding, batches, and the similarities of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mila.errors import DataError
from mila.kernels.signatures import Array
from mila.models.clip import ClipTextEncoder
from mila.models.clip_definition import ClipTextConfig

if TYPE_CHECKING:
    from mila.generation.text import TextTokenizer


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text.

    Attributes:
        ids: with those that begin and end it.
        is_truncated: whether it has more than the model takes; the end of the text is left out, not its end token.
    """

    ids: tuple[int, ...]
    is_truncated: bool


@dataclass(frozen=True)
class TextEmbeddings:
    """What a text encoder makes of texts.

    Attributes:
        vectors: (N, P) float32: projected where the model has a projection, else pooled; as computed.
    """

    vectors: Array

    @property
    def norms(self) -> Array:
        """(N,): the Euclidean lengths of the vectors."""
        return np.asarray(np.sqrt(np.sum(self.vectors.astype(np.float64) ** 2, axis=1)), np.float32)

    @property
    def normalized(self) -> Array:
        """(N, P): the vectors with length 1; one of length 0 stays as it is."""
        norms = self.norms[:, None]
        return np.asarray(self.vectors / np.where(norms > 0, norms, 1), np.float32)

    def similarities(self) -> Array:
        """(N, N): the cosines between all pairs."""
        vectors = self.normalized
        return np.asarray(vectors @ vectors.T, np.float32)


def encode_text(tokenizer: TextTokenizer, text: str, config: ClipTextConfig, name: str = "text") -> EncodedText:
    """The tokens of a text, at most as many as the model takes.

    Args:
        tokenizer: of the model's folder.
        text: any text.
        config: of the model.
        name: what errors call the text.

    Raises:
        DataError: no text, no token, a tokenizer that does not end texts as the model expects, or a text that is too
            long and cannot be cut: its own tokens are no run among all of them.
    """
    ids = tokenizer.encode(text, name=name)
    limit, end = config.max_seq_len, config.end_of_text_id
    is_truncated = len(ids) > limit
    if is_truncated:
        inner = tokenizer.encode(text, add_special_tokens=False, name=name)
        ids = _truncated(f"{tokenizer.folder}: {name}", ids, inner, limit)
    if not ids:
        raise DataError(f"{name}: expected at least one token, got none")
    if end is not None and end < config.vocab_size and end not in ids:
        raise DataError(
            f"{tokenizer.folder}: {name}: expected a tokenizer that ends a text with {end}, the token where the model "
            f"pools, got {ids[-1]}"
        )
    return EncodedText(tuple(ids), is_truncated)


def _truncated(what: str, ids: list[int], inner: list[int], limit: int) -> list[int]:
    """Leave out the last of the ``inner`` tokens, those of the text itself, and keep what stands around them."""
    around = len(ids) - len(inner)
    if around >= limit:
        raise DataError(f"{what}: expected a tokenizer that adds fewer than {limit} tokens to a text, got {around}")
    first = next((start for start in range(around + 1) if ids[start : start + len(inner)] == inner), None)
    if first is None:
        raise DataError(
            f"{what}: expected at most {limit} tokens, got {len(ids)}, and a tokenizer that puts tokens into the text, "
            "so that it cannot be cut"
        )
    return ids[:first] + inner[: limit - around] + ids[first + len(inner) :]


def embed_texts(
    encoder: ClipTextEncoder,
    texts: Sequence[EncodedText],
    *,
    pad_token_id: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> TextEmbeddings:
    """Embed texts, as many at a time as the encoder is built for.

    Args:
        encoder: built, with all its parameters, for texts as long as the longest of ``texts`` or longer.
        texts: see :func:`encode_text`.
        pad_token_id: what stands behind a text that is shorter than the encoder's; 0 where it is ``None`` or no token.
        on_progress: called with the texts done and all of them.

    Raises:
        DataError: no text, or one that is longer than the encoder was built for.
        LifecycleError: the encoder is not built.
    """
    encoder.require_built("embed_texts")
    assert encoder.build_context is not None
    batch, length = next(iter(encoder.build_context.input_shapes.values()))
    ids = _padded(texts, length, encoder.text_config, pad_token_id)
    made = []
    for start in range(0, len(ids), batch):
        output = encoder.forward(encoder.device.to_device(ids[start : start + batch]))
        vectors = encoder.device.download(output.pooled if output.embeds is None else output.embeds)
        made.append(vectors.astype(np.float32))  # a copy: the next batch overwrites it
        if on_progress is not None:
            on_progress(min(start + batch, len(ids)), len(ids))
    return TextEmbeddings(np.concatenate(made))


def _padded(texts: Sequence[EncodedText], length: int, config: ClipTextConfig, pad_token_id: int | None) -> Array:
    """Ids (N, length), int64."""
    if not texts:
        raise DataError("texts: expected at least one, got none")
    padding = 0 if pad_token_id is None or not 0 <= pad_token_id < config.vocab_size else pad_token_id
    ids: Array = np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        if len(text.ids) > length:
            raise DataError(f"text {row + 1}: expected at most {length} tokens, got {len(text.ids)}")
        ids[row, : len(text.ids)] = text.ids
        # Where a text is pooled at its largest id, padding must not have a larger one.
        if config.end_of_text_id is not None or padding <= max(text.ids):
            ids[row, len(text.ids) :] = padding
    return ids
