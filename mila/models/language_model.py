"""What all language models share: ids in, logits out."""

from __future__ import annotations

from typing import TypeVar

from pydantic import Field

from mila.core import BuildContext, Network, ParameterizedConfig, Port
from mila.errors import ShapeError

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


class LanguageModel(Network[LanguageModelConfigT]):
    """Ids (B, T) to logits: (B, T, V) in training, (B, 1, V) of the last valid position in inference."""

    ports = (Port("ids", is_ids=True),)

    def default_prefill_size(self, length: int) -> int:
        """Chunks of at most 512 positions."""
        return min(length, DEFAULT_PREFILL_SIZE)

    def check_context(self, context: BuildContext) -> None:
        """Sequences within the config's limit."""
        lengths = [shape[1] for shape in context.input_shapes.values() if len(shape) > 1]
        longest = max([*lengths, context.max_seq_len or 0])
        if longest > self.config.max_seq_len:
            raise ShapeError(f"{self.path}: expected at most {self.config.max_seq_len} positions, got {longest}")
