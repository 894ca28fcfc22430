"""Attention, feed-forward layers, and the block made of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mila.components import (
    CrossAttention,
    CrossAttentionConfig,
    FeedForward,
    FeedForwardConfig,
    GatedFeedForward,
    GatedFeedForwardConfig,
    MixtureOfExperts,
    MixtureOfExpertsConfig,
    SelfAttention,
    SelfAttentionConfig,
    TransformerBlock,
    TransformerBlockConfig,
)
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator
from mila.network_language.operators.ranks import divisible_by_heads, two_or_three_axes
from mila.network_language.relations import NodeView

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "quick_gelu")
_HEADS = Argument(name="heads", type="int", minimum=1, help="Heads; they divide the width.")
_HIDDEN = Argument(name="hidden", type="int", minimum=1, help="Width between the projections.")
_CAUSAL = Argument(
    name="causal",
    type="bool",
    default=False,
    positional=False,
    help="Whether a token sees only itself and those before.",
)
_DROPOUT = Argument(
    name="dropout",
    type="float",
    default=0.0,
    positional=False,
    minimum=0,
    below=1,
    help="Probability that a weight is dropped, in training.",
)
_BIAS = Argument(name="bias", type="bool", default=True, positional=False, help="Whether the projections have biases.")
_ACTIVATION = Argument(
    name="activation",
    type="str",
    default="gelu",
    choices=ACTIVATIONS,
    positional=False,
    help="The function between the projections.",
)


def _attention(name: str, node: NodeShapes) -> SelfAttention:
    arguments = node.arguments
    config = SelfAttentionConfig(
        embedding_dim=node.width,
        num_heads=arguments["heads"],
        causal=arguments["causal"],
        dropout=arguments["dropout"],
        bias=arguments["bias"],
        rope=arguments["rope"],
    )
    return SelfAttention(name, config)


def _cross_attention(name: str, node: NodeShapes) -> CrossAttention:
    config = CrossAttentionConfig(
        embedding_dim=node.width,
        num_heads=node.arguments["heads"],
        context_dim=int(node.inputs["context"][-1]),
        bias=node.arguments["bias"],
        dropout=node.arguments["dropout"],
    )
    return CrossAttention(name, config)


def _feed_forward(name: str, node: NodeShapes) -> FeedForward:
    arguments = node.arguments
    config = FeedForwardConfig(
        embedding_dim=node.width,
        hidden_dim=arguments["hidden"],
        activation=arguments["activation"],
        dropout=arguments["dropout"],
        bias=arguments["bias"],
    )
    return FeedForward(name, config)


def _swiglu(name: str, node: NodeShapes) -> GatedFeedForward:
    hidden, bias = node.arguments["hidden"], node.arguments["bias"]
    return GatedFeedForward(name, GatedFeedForwardConfig(embedding_dim=node.width, hidden_dim=hidden, bias=bias))


def _moe(name: str, node: NodeShapes) -> MixtureOfExperts:
    arguments = node.arguments
    config = MixtureOfExpertsConfig(
        embedding_dim=node.width,
        hidden_dim=arguments["hidden"],
        num_experts=arguments["experts"],
        top_k=arguments["top_k"],
        activation=arguments["activation"],
    )
    return MixtureOfExperts(name, config)


def _block(name: str, node: NodeShapes) -> TransformerBlock:
    arguments = node.arguments
    config = TransformerBlockConfig(
        embedding_dim=node.width,
        num_heads=arguments["heads"],
        hidden_dim=arguments["mlp_ratio"] * node.width,
        activation=arguments["activation"],
        norm=arguments["norm"],
        causal=arguments["causal"],
        dropout=arguments["dropout"],
        layer_scale=arguments["layer_scale"],
        layer_scale_init=arguments["layer_scale_init"],
        epsilon=arguments["eps"],
    )
    return TransformerBlock(name, config)


def _attention_widths(view: NodeView) -> None:
    divisible_by_heads(view)
    known, heads = view.known("x", 2), view.argument("heads")
    if view.argument("rope") and known is not None and int(known.value) // heads % 2:
        view.refuse(f"rope=True needs an even width per head, but heads={heads} share the width D of x, {known}")


def _top_k_of_the_experts(arguments: Mapping[str, Any]) -> str | None:
    top_k, experts = arguments["top_k"], arguments["experts"]
    return f"top_k={top_k} of experts={experts}; it is at most their number" if top_k > experts else None


ATTENTION = Operator(
    alias="attention",
    identity="attention@1",
    category="sequence",
    summary="Self-attention with several heads.",
    documentation=(
        "Queries, keys and values are projections of x; each head has D / heads neighbouring features; weights are "
        "`softmax(q k^T / sqrt(D / heads))`; a last projection joins the heads. With `rope`, queries and keys are "
        "rotated by their position, half against half, base 10000."
    ),
    pattern="x[B, T, D] -> out[B, T, D]",
    arguments=(
        _HEADS,
        _CAUSAL,
        _DROPOUT,
        _BIAS,
        Argument(name="rope", type="bool", default=False, positional=False, help="Whether positions are rotations."),
    ),
    component=_attention,
    relation=_attention_widths,
    examples=(Example(source="attention(4)", input_shape=("B", 8, 32), output_shape=("B", 8, 32)),),
)

CROSS_ATTENTION = Operator(
    alias="cross_attention",
    identity="cross_attention@1",
    category="sequence",
    summary="Attention of one sequence to another.",
    documentation="As `attention`, with keys and values projected from `context`, whose length and width may differ.",
    pattern="x[B, T, D], context[B, S, C] -> out[B, T, D]",
    arguments=(_HEADS, _BIAS, _DROPOUT),
    component=_cross_attention,
    relation=divisible_by_heads,
    examples=(
        Example(
            source="cross_attention(x, context, 4)",
            input_shape={"x": ("B", 8, 32), "context": ("B", 5, 16)},
            output_shape=("B", 8, 32),
        ),
    ),
)

FEED_FORWARD = Operator(
    alias="feed_forward",
    identity="feed_forward@1",
    category="sequence",
    summary="Two projections with an activation between them.",
    documentation="`out = down(dropout(activation(up(x))))`.",
    pattern="x[B, ..., D] -> out[B, ..., D]",
    arguments=(_HIDDEN, _ACTIVATION, _DROPOUT, _BIAS),
    component=_feed_forward,
    relation=two_or_three_axes,
    examples=(Example(source="feed_forward(64)", input_shape=("B", 6, 16), output_shape=("B", 6, 16)),),
)

SWIGLU = Operator(
    alias="swiglu",
    identity="swiglu@1",
    category="sequence",
    summary="A feed-forward layer whose hidden features are gated.",
    documentation="`out = down(silu(gate(x)) * up(x))`.",
    pattern="x[B, ..., D] -> out[B, ..., D]",
    arguments=(
        _HIDDEN,
        Argument(
            name="bias", type="bool", default=False, positional=False, help="Whether the projections have biases."
        ),
    ),
    component=_swiglu,
    relation=two_or_three_axes,
    examples=(Example(source="swiglu(64)", input_shape=("B", 6, 16), output_shape=("B", 6, 16)),),
)

MOE = Operator(
    alias="moe",
    identity="moe@1",
    category="sequence",
    summary="A mixture of feed-forward experts.",
    documentation=(
        "A router without bias scores the experts for every token; the `top_k` best run, and their results are added "
        "with the softmax of their scores as weights. Every expert is a `feed_forward` with biases."
    ),
    pattern="x[B, T, D] -> out[B, T, D]",
    arguments=(
        Argument(name="experts", type="int", minimum=1, maximum=1024, help="How many experts there are."),
        _HIDDEN,
        Argument(name="top_k", type="int", default=2, minimum=1, positional=False, help="Experts that a token uses."),
        _ACTIVATION,
    ),
    component=_moe,
    validate=_top_k_of_the_experts,
    examples=(Example(source="moe(4, 32)", input_shape=("B", 6, 16), output_shape=("B", 6, 16)),),
)

TRANSFORMER_BLOCK = Operator(
    alias="transformer_block",
    identity="transformer_block@1",
    category="sequence",
    summary="Attention and a feed-forward layer, each normalised before and added after.",
    documentation=(
        "`h = x + gamma1 * attn(norm1(x))`, `out = h + gamma2 * ffn(norm2(h))`; without `layer_scale` the gammas are 1 "
        "and no parameters. The hidden width is `mlp_ratio * D`. Dropout acts on the attention weights and after the "
        "activation."
    ),
    pattern="x[B, T, D] -> out[B, T, D]",
    arguments=(
        _HEADS,
        Argument(
            name="mlp_ratio",
            type="int",
            default=4,
            minimum=1,
            positional=False,
            help="Hidden width of the feed-forward layer, in widths of x.",
        ),
        _ACTIVATION,
        Argument(
            name="norm",
            type="str",
            default="layer_norm",
            choices=("layer_norm", "rms_norm"),
            positional=False,
            help="The normalization before attention and feed-forward layer.",
        ),
        _CAUSAL,
        _DROPOUT,
        Argument(
            name="layer_scale", type="bool", default=False, positional=False, help="Whether the gammas are learned."
        ),
        Argument(
            name="layer_scale_init",
            type="float",
            default=1e-5,
            minimum=0,
            positional=False,
            stored=True,
            help="What the gammas start from.",
        ),
        Argument(
            name="eps",
            type="float",
            default=1e-5,
            above=0,
            positional=False,
            help="Added to the variance by the norms.",
        ),
    ),
    component=_block,
    relation=divisible_by_heads,
    examples=(
        Example(
            source="linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()",
            input_shape=("B", 6, 8),
            output_shape=("B", 6, 8),
        ),
    ),
)

OPERATORS = (ATTENTION, CROSS_ATTENTION, FEED_FORWARD, SWIGLU, TRANSFORMER_BLOCK, MOE)
