"""Cases of networks that are written in the network definition language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mila
from mila.models import ClipTextConfig, ClipTextEncoder
from mila.network_language import DefinedNetwork, DefinedNetworkConfig
from tests.promises.case import Case

Shapes = Mapping[str, tuple[int, ...]]


def of_one_batch(built: Shapes) -> Callable[[Shapes], bool]:
    """Take a smaller batch, the same for all inputs, and nothing else that is smaller."""

    def takes(shapes: Shapes) -> bool:
        batches = {shape[0] for shape in shapes.values()}
        return len(batches) == 1 and all(shapes[name][1:] == shape[1:] for name, shape in built.items())

    return takes


def defined(
    name: str, source: str, built: Shapes, outputs: Any, ids: Mapping[str, int] | None = None, **arguments: Any
) -> Case:
    """Return the case of a definition, built for ``built``; inputs in ``ids`` are ids below a limit."""
    limits = dict(ids or {})
    resolved = mila.resolve(
        source,
        input_shape={port: ("B", *shape[1:]) for port, shape in built.items()},
        output_shape=outputs,
        input_dtype=dict.fromkeys(limits, "int64"),
    )
    return Case(
        f"DefinedNetwork({name})",
        lambda **options: DefinedNetwork("case", resolved=resolved, **options),
        (DefinedNetworkConfig(plan=resolved.to_json()),),
        dict(built),
        limits=limits,
        takes=of_one_batch(built),
        **arguments,
    )


def clip_text_encoder(batch: int = 3, length: int = 5, **fields: Any) -> Case:
    """Return the case of a text encoder."""
    config = ClipTextConfig(**fields)

    def construct(**options: Any) -> ClipTextEncoder:
        return ClipTextEncoder("case", config, length=length, **options)

    built = {"ids": (batch, length)}
    configs = (construct().config, config)
    name, limits = f"ClipTextEncoder({config.end_of_text_id})", {"ids": config.vocab_size}
    return Case(name, construct, configs, built, limits=limits, takes=of_one_batch(built))


NETWORK_CASES = [
    clip_text_encoder(
        vocab_size=11,
        embedding_dim=6,
        hidden_dim=7,
        num_layers=2,
        num_heads=3,
        max_seq_len=8,
        projection_dim=4,
        end_of_text_id=None,
    ),
    clip_text_encoder(
        vocab_size=9,
        embedding_dim=8,
        hidden_dim=5,
        num_layers=1,
        num_heads=2,
        max_seq_len=5,
        activation="gelu",
        norm_epsilon=1e-3,
        projection_dim=None,
        end_of_text_id=7,
    ),
    defined(
        "text encoder",
        """
        h = embedding(x, 11, 6)
        h = pos_embed(h, 8)
        h = transformer_block(h, 2, mlp_ratio=2, causal=True)
        pooled = gather_token(h, x)
        linear(pooled)
        """,
        {"x": (3, 5)},
        ("B", 4),
        ids={"x": 11},
    ),
    defined(
        "two inputs and three outputs, two of one value",
        """
        h = linear(x, 6, init={"bias": 0.25}, trainable={"weight": False})
        first = gather_token(h, ids)
        again = first
        h = cls_token(h)
        h = attention(h, 3, rope=True, trainable=False)
        both = concat(h, h, axis=2)
        """,
        {"x": (2, 4, 5), "ids": (2, 4)},
        {"first": ("B", 6), "again": ("B", 6), "both": ("B", 5, 12)},
        ids={"ids": 7},
    ),
    defined(
        "batches joined and cut",
        """
        pair = concat(x, y, axis=0)
        shared = swiglu(pair, 5)
        p, q = chunk(shared, 2, dim=0)
        sub(p, q)
        """,
        {"x": (2, 3), "y": (2, 3)},
        ("B", 3),
    ),
]
#: Of activations that take a megabyte and more.
LARGE_NETWORK_CASES = [
    clip_text_encoder(
        batch=8,
        length=128,
        vocab_size=64,
        embedding_dim=256,
        hidden_dim=512,
        num_layers=1,
        num_heads=4,
        max_seq_len=128,
        end_of_text_id=7,
    ),
    defined("large", "linear(512)\ngelu()\nlinear()", {"x": (8, 128, 256)}, ("B", 128, 256)),
]
