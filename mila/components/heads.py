"""What configs of attention with heads of one size have in common."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mila.core import ParameterizedConfig


class HeadsConfig(ParameterizedConfig):
    """A width that is divided among heads.

    Attributes:
        embedding_dim: width C of the sequence, and of the heads together.
        num_heads: attention heads H, a divisor of C.
    """

    embedding_dim: int = Field(gt=0)
    num_heads: int = Field(gt=0)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.embedding_dim % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} must divide embedding_dim {self.embedding_dim}")
        return self

    @property
    def head_dim(self) -> int:
        """Size D of a head."""
        return self.embedding_dim // self.num_heads
