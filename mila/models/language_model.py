"""What all language models share: ids in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from numpy.typing import NDArray
from pydantic import Field

from mila.core import BuildContext, Network, ParameterizedConfig, Port
from mila.errors import ConfigurationError, ShapeError
from mila.generation import (
    Completion,
    DecodingSession,
    GenerationConfig,
    TokenCallback,
    TokenSequence,
    generate,
    is_single_prompt,
)
from mila.kernels.signatures import Array
from mila.memory.storage import DType
from mila.models.pretrained import Pretrained

#: Positions that one inference call takes at most, where the context does not say.
DEFAULT_PREFILL_SIZE = 512


class LanguageModelConfig(ParameterizedConfig):
    """Fields of every language model.

    Attributes:
        vocab_size: number of tokens V.
        embedding_dim: width C.
        num_layers: number of blocks.
        num_heads: query heads of each block.
        max_seq_len: the longest sequence allowed.
        tie_word_embeddings: whether the head computes with the token table.
    """

    vocab_size: int = Field(gt=0)
    embedding_dim: int = Field(gt=0)
    num_layers: int = Field(ge=0)
    num_heads: int = Field(gt=0)
    max_seq_len: int = Field(gt=0)
    tie_word_embeddings: bool = True


LanguageModelConfigT = TypeVar("LanguageModelConfigT", bound=LanguageModelConfig)


def default_prefill_size(length: int) -> int:
    """Positions of a call where none were asked for: at most 512."""
    return min(length, DEFAULT_PREFILL_SIZE)


class LanguageModel(Network[LanguageModelConfigT]):
    """Ids (B, T) to logits: (B, T, V) in training, (B, 1, V) of the last valid position in inference."""

    ports = (Port("ids", is_ids=True),)
    #: The model folder that its weights came from.
    pretrained: Pretrained | None = None
    _decoding_session: DecodingSession | None = None

    def default_prefill_size(self, length: int) -> int:
        """Chunks of at most 512 positions."""
        return default_prefill_size(length)

    def check_context(self, context: BuildContext) -> None:
        """Sequences within the config's limit."""
        lengths = [shape[1] for shape in context.input_shapes.values() if len(shape) > 1]
        longest = max([*lengths, context.max_seq_len or 0])
        if longest > self.config.max_seq_len:
            raise ShapeError(f"{self.path}: expected at most {self.config.max_seq_len} positions, got {longest}")

    def save_pretrained(
        self,
        folder: Path | str,
        *,
        max_shard_size: str | int = "5GB",
        dtype: DType | type[Any] | str | None = None,
    ) -> None:
        """Write a model folder that ``transformers`` opens; see :func:`mila.models.export_pretrained`.

        ``folder`` is a free name or an earlier export, never the folder of a download.
        """
        from mila.models.hugging_face.exporting import export_pretrained  # it knows this class

        export_pretrained(self, folder, max_shard_size=max_shard_size, dtype=dtype)

    # ------------------------------------------------------------------ generation

    @property
    def decoding_session(self) -> DecodingSession:
        """What the cache holds, and how more gets into it: one session for as long as the network lives.

        Raises:
            LifecycleError: not built, or parameters are missing.
            ConfigurationError: built for training.
        """
        if self._decoding_session is None:
            self._decoding_session = DecodingSession(self)
        return self._decoding_session

    def prefill(self, prompts: Sequence[TokenSequence]) -> Array:
        """The logits (B, V) after each prompt; see :meth:`mila.generation.DecodingSession.prefill`."""
        return self.decoding_session.prefill(prompts)

    def decode(self, tokens: Sequence[int | None]) -> Array:
        """The logits (B, V) after one more token per row; see :meth:`mila.generation.DecodingSession.step`."""
        return self.decoding_session.step(tokens)

    @overload
    def generate(
        self, prompts: Sequence[int], config: GenerationConfig | None = None, **options: Any
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: Sequence[TokenSequence], config: GenerationConfig | None = None, **options: Any
    ) -> list[Completion]: ...

    @overload
    def generate(
        self, prompts: NDArray[Any], config: GenerationConfig | None = None, **options: Any
    ) -> Completion | list[Completion]: ...

    def generate(
        self,
        prompts: TokenSequence | Sequence[TokenSequence],
        config: GenerationConfig | None = None,
        *,
        on_token: TokenCallback | None = None,
        **fields: Any,
    ) -> Completion | list[Completion]:
        """Write what follows a prompt, or each of several; see :func:`mila.generation.generate`.

        Args:
            prompts: the token ids of one prompt, which gives one completion, or a sequence of prompts, which gives a
                list.
            config: how to choose, and when to stop.
            on_token: called with the row and each token; returning ``False``, NumPy's too, cancels the row.
            fields: those of :class:`mila.generation.GenerationConfig`, where no ``config`` is given.

        Raises:
            ConfigurationError: both a ``config`` and its fields.
        """
        if config is not None and fields:
            raise ConfigurationError(f"{self.path}: expected a config or its fields, got both: {', '.join(fields)}")
        chosen = GenerationConfig(**fields) if config is None else config
        is_single = is_single_prompt(prompts)
        rows = cast(Sequence[TokenSequence], [prompts] if is_single else prompts)
        completions = generate(self, rows, chosen, on_token=on_token)
        return completions[0] if is_single else completions
