"""Tokens: looking them up, placing them, choosing among them."""

from __future__ import annotations

from mila.components import (
    ClsToken,
    ClsTokenConfig,
    GatherToken,
    GatherTokenConfig,
    LearnedPositionEncoding,
    LearnedPositionEncodingConfig,
    PoolTokens,
    PoolTokensConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.network_language.arguments import Argument
from mila.network_language.operator import Example, NodeShapes, Operator
from mila.network_language.relations import NodeView


def _embedding(name: str, node: NodeShapes) -> TokenEmbedding:
    rows, width = node.arguments["num_embeddings"], node.arguments["dim"]
    return TokenEmbedding(name, TokenEmbeddingConfig(vocab_size=rows, embedding_dim=width, initial_std=1.0))


def _positions(name: str, node: NodeShapes) -> LearnedPositionEncoding:
    config = LearnedPositionEncodingConfig(
        max_seq_len=node.arguments["max_len"], embedding_dim=node.width, initial_std=0.02
    )
    return LearnedPositionEncoding(name, config)


def _token(name: str, node: NodeShapes) -> ClsToken:
    return ClsToken(name, ClsTokenConfig(embedding_dim=node.width, initial_std=0.02))


def _gather(name: str, node: NodeShapes) -> GatherToken:
    return GatherToken(name, GatherTokenConfig(mode=node.arguments["mode"]))


def _pool(name: str, node: NodeShapes) -> PoolTokens:
    return PoolTokens(name, PoolTokensConfig(mode=node.arguments["mode"]))


def _fits_the_table(view: NodeView) -> None:
    known, longest = view.known("x", 1), view.argument("max_len")
    if known is not None and int(known.value) > longest:
        view.refuse(f"max_len={longest} positions, but x has {known}")


def _one_more_token(view: NodeView) -> None:
    before, after = view.known("x", 1), view.known("out", 1)
    if before is not None:
        view.set_size("out", 1, int(before.value) + 1, f"{before.origin}, and one token by {view.node.label}")
    elif after is not None:
        if int(after.value) < 2:
            view.refuse(f"out has the token and at least one more, but axis 1 of out is {after}")
        view.set_size("x", 1, int(after.value) - 1, f"{after.origin}, without the token of {view.node.label}")


EMBEDDING = Operator(
    alias="embedding",
    identity="embedding@1",
    category="sequence",
    summary="A table of vectors, looked up by id.",
    documentation="`out[b, t] = weight[ids[b, t]]`. An id outside the table is an error when the network runs.",
    pattern="ids[B, T]:int64 -> out[B, T, D]",
    arguments=(
        Argument(name="num_embeddings", type="int", minimum=1, help="Rows of the table: ids go from 0 below it."),
        Argument(name="dim", type="int", inferable=True, minimum=1, dimension="D", help="Width of a vector."),
    ),
    component=_embedding,
    parameter_names={"wte": "weight"},
    examples=(
        Example(
            note="The width of the table comes from the output contract.",
            source="embedding(64)\nrelu()",
            input_shape=("B", 8),
            output_shape=("B", 8, 5),
            input_dtype="int64",
        ),
    ),
)

POS_EMBED = Operator(
    alias="pos_embed",
    identity="pos_embed@1",
    category="sequence",
    summary="Adds a learned vector for every position.",
    documentation="`out[b, t] = x[b, t] + weight[t]`. The table has `max_len` rows, however many of them are used.",
    pattern="x[B, T, D] -> out[B, T, D]",
    arguments=(Argument(name="max_len", type="int", minimum=1, help="Rows of the table: the most tokens."),),
    component=_positions,
    parameter_names={"wpe": "weight"},
    relation=_fits_the_table,
    examples=(Example(source="pos_embed(64)\nlinear(8)", input_shape=("B", 6, 4), output_shape=("B", 6, 8)),),
)

CLS_TOKEN = Operator(
    alias="cls_token",
    identity="cls_token@1",
    category="sequence",
    summary="Puts one learned token before all others.",
    documentation="`out[b, 0] = token`, `out[b, t + 1] = x[b, t]`.",
    pattern="x[B, T, D] -> out[B, S, D]",
    component=_token,
    relation=_one_more_token,
    examples=(
        Example(
            note="Seven tokens leave, six came.",
            source="embedding(128, 16)\ncls_token()\npos_embed(32)\nlinear(4)",
            input_shape=("B", 6),
            output_shape=("B", 7, 4),
            input_dtype="int64",
        ),
    ),
)

GATHER_TOKEN = Operator(
    alias="gather_token",
    identity="gather_token@1",
    category="sequence",
    summary="Takes the token whose id is the largest.",
    documentation=(
        "`p[b] = argmax_t ids[b, t]`, the first of several; `out[b] = x[b, p[b]]`. A text encoder whose end-of-text "
        "token has the largest id reads its sentence there. The ids have no gradient."
    ),
    pattern="x[B, T, D], ids[B, T]:int64 -> out[B, D]",
    arguments=(
        Argument(
            name="mode",
            type="str",
            default="argmax",
            choices=("argmax",),
            positional=False,
            help="How the position is found.",
        ),
    ),
    component=_gather,
    examples=(
        Example(
            note="A small text encoder.",
            source="tokens = embedding(x, 32, 8)\nfeatures = linear(tokens, 8)\ngather_token(features, x)",
            input_shape=("B", 6),
            output_shape=("B", 8),
            input_dtype="int64",
        ),
        Example(
            note="With positions and a transformer block; the projection's width comes from the output contract.",
            source=(
                "h = embedding(x, 64, 16)\n"
                "h = pos_embed(h, 32)\n"
                "h = transformer_block(h, 4)\n"
                "pooled = gather_token(h, x)\n"
                "linear(pooled)"
            ),
            input_shape=("B", 10),
            output_shape=("B", 12),
            input_dtype="int64",
        ),
    ),
)

POOL_TOKENS = Operator(
    alias="pool_tokens",
    identity="pool_tokens@1",
    category="sequence",
    summary="One vector of all tokens: mean, first, last or largest.",
    documentation="Over axis 1, for each feature by itself. `max` gives its gradient to the first of equal values.",
    pattern="x[B, T, D] -> out[B, D]",
    arguments=(
        Argument(
            name="mode",
            type="str",
            default="mean",
            choices=("mean", "first", "last", "max"),
            help="What is taken of the tokens.",
        ),
    ),
    component=_pool,
    examples=(Example(source="linear(16)\npool_tokens()\nlinear()", input_shape=("B", 6, 8), output_shape=("B", 10)),),
)

OPERATORS = (EMBEDDING, POS_EMBED, CLS_TOKEN, GATHER_TOKEN, POOL_TOKENS)
