"""The operator that CLIP's text encoder has beside those of the network language."""

from __future__ import annotations

from mila.components import GatherToken, GatherTokenConfig
from mila.network_language import BUILT_IN, Argument, Example, NodeShapes, Operator


def _gather(name: str, node: NodeShapes) -> GatherToken:
    return GatherToken(name, GatherTokenConfig(token_id=node.arguments["token_id"]))


GATHER_ID = Operator(
    alias="gather_id",
    identity="gather_id@1",
    category="sequence",
    summary="Takes the first token that has a certain id.",
    documentation=(
        "`p[b]` is the first position of `token_id` in `ids[b]`, and 0 where there is none; `out[b] = x[b, p[b]]`. The "
        "ids have no gradient."
    ),
    pattern="x[B, T, D], ids[B, T]:int64 -> out[B, D]",
    arguments=(Argument(name="token_id", type="int", help="The id that is looked for."),),
    component=_gather,
    examples=(
        Example(
            note="A text is read where it ends, at token 31.",
            source="h = embedding(ids, 32, 8)\nh = attention(h, 2, causal=True)\ngather_id(h, ids, 31)",
            input_shape={"ids": ("B", 6)},
            output_shape=("B", 8),
            input_dtype="int64",
        ),
    ),
)
#: The operators of :func:`mila.models.clip_text_definition`.
CLIP_REGISTRY = BUILT_IN.extended(GATHER_ID)
