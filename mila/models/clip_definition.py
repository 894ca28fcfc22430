"""What a CLIP text encoder is (Radford et al. 2021), and its definition in the network language."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mila.core import ComponentConfig
from mila.network_language.resolving import ShapeContract

#: Definitions of more layers are longer than the language allows.
MOST_LAYERS = 128
#: Names of the input and the outputs of the definition.
IDS = "ids"
HIDDEN_STATES, POOLED, EMBEDS = "last_hidden_states", "pooled", "embeds"


class ClipTextConfig(ComponentConfig):
    """Config of :class:`mila.models.ClipTextEncoder`.

    Attributes:
        vocab_size: number of tokens V.
        embedding_dim: width D.
        hidden_dim: width of the feed-forward networks.
        num_layers: number of blocks.
        num_heads: heads of each block, a divisor of the width.
        max_seq_len: rows of the position table: the most tokens of a text.
        activation: of the feed-forward networks; ``quick_gelu`` is ``x * sigmoid(1.702 x)``.
        norm_epsilon: of the norms.
        projection_dim: width P of the projected embeddings; ``None``: there is no projection.
        end_of_text_id: the token at whose first place a text is pooled; a text without it is pooled at its first
            token. ``None`` is the rule of old checkpoints: at the first place of the largest id.
    """

    vocab_size: int = Field(default=49408, gt=0)
    embedding_dim: int = Field(default=512, gt=0)
    hidden_dim: int = Field(default=2048, gt=0)
    num_layers: int = Field(default=12, ge=0, le=MOST_LAYERS)
    num_heads: int = Field(default=8, gt=0)
    max_seq_len: int = Field(default=77, gt=0)
    activation: Literal["quick_gelu", "gelu"] = "quick_gelu"
    norm_epsilon: float = Field(default=1e-5, gt=0)
    projection_dim: int | None = Field(default=512, gt=0)
    end_of_text_id: int | None = Field(default=49407, ge=0, lt=1 << 31)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embedding_dim % self.num_heads:
            raise ValueError(
                f"embedding_dim must be a multiple of num_heads, got embedding_dim {self.embedding_dim} and "
                f"num_heads {self.num_heads}"
            )
        return self


def clip_text_definition(config: ClipTextConfig) -> str:
    """The definition of a text encoder in the network language, with the operators of ``mila.models.CLIP_REGISTRY``.

    Its input is ``ids``; its outputs are ``last_hidden_states``, ``pooled`` and, with a projection, ``embeds``.
    """
    width, epsilon = config.embedding_dim, repr(config.norm_epsilon)
    lines = [
        f'h = embedding({IDS}, {config.vocab_size}, {width}, name="token_embedding")',
        f'h = pos_embed(h, {config.max_seq_len}, name="position_embedding")',
    ]
    for layer in (f"layer_{number}" for number in range(config.num_layers)):
        hidden = f'{config.hidden_dim}, activation="{config.activation}"'
        lines += [
            "",
            f'n = layer_norm(h, eps={epsilon}, name="{layer}_norm_1")',
            f'a = attention(n, {config.num_heads}, causal=True, name="{layer}_attention")',
            f'h = add(h, a, name="{layer}_residual_1")',
            f'n = layer_norm(h, eps={epsilon}, name="{layer}_norm_2")',
            f'f = feed_forward(n, {hidden}, name="{layer}_feed_forward")',
            f'h = add(h, f, name="{layer}_residual_2")',
        ]
    end = config.end_of_text_id
    pooling = f"gather_token({HIDDEN_STATES}, {IDS}" if end is None else f"gather_id({HIDDEN_STATES}, {IDS}, {end}"
    lines += [
        "",
        f'{HIDDEN_STATES} = layer_norm(h, eps={epsilon}, name="final_norm")',
        f'{POOLED} = {pooling}, name="pooling")',
    ]
    if config.projection_dim is not None:
        lines.append(f'{EMBEDS} = linear({POOLED}, {config.projection_dim}, bias=False, name="projection")')
    return "\n".join(lines) + "\n"


def clip_text_contracts(config: ClipTextConfig, length: int) -> tuple[ShapeContract, ShapeContract]:
    """The input and the output contract of the definition, for texts of ``length`` tokens and a free batch."""
    width = config.embedding_dim
    outputs: dict[str, tuple[str | int, ...]] = {HIDDEN_STATES: ("B", length, width), POOLED: ("B", width)}
    if config.projection_dim is not None:
        outputs[EMBEDS] = ("B", config.projection_dim)
    return {IDS: ("B", length)}, outputs
