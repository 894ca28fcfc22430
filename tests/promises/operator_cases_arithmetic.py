"""Cases of arithmetic and of what gathers, prepends and pools positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mila.components import (
    Add,
    BroadcastAdd,
    Clamp,
    ClampConfig,
    ClsToken,
    ClsTokenConfig,
    Constant,
    ConstantConfig,
    GatherToken,
    LearnedScale,
    LearnedScaleConfig,
    MatrixProduct,
    Multiply,
    PoolTokens,
    Scale,
    ScaleConfig,
    Subtract,
)
from mila.core import CompositeComponent, Graph, Port, Reference
from mila.errors import ConfigurationError, ShapeError
from tests.promises.case import INFERENCE, Case, Refused, Shapes, family
from tests.promises.leaf_cases import ANY_RANK, SEQUENCES, widths
from tests.promises.refused_cases import build_refusal, config_refusal
from tests.promises.structures import WIDTH, EmptyConfig, linear, structure

POOLS = [{"mode": "mean"}, {"mode": "first"}, {"mode": "last"}, {"mode": "max"}]
FACTORS = [{"factor": -0.5}, {"factor": 3.0}, {"factor": 0.0}]
BOUNDS = [
    {"minimum": -0.5, "maximum": 0.75},
    {"minimum": 0.0, "maximum": 9.0},
    {"minimum": 0.3, "maximum": 0.3},
]
GAMMAS: list[dict[str, Any]] = [{}, {"init_value": 0.7}, {"trainable": False}, {"init_value": -1.5, "trainable": False}]
STRETCHED: list[Shapes] = [
    {"a": (2, 5, 3), "b": (2, 1, 3)},
    {"a": (3, 1), "b": (3, 7)},
    {"a": (1, 5, 1), "b": (3, 1, 7)},
    {"a": (2, 3, 5), "b": (2, 3, 5)},
    {"a": (1, 1, 1, 1), "b": (2, 3, 5, 2)},
    {"a": (5,), "b": (1,)},
]
PRODUCTS: list[Shapes] = [
    {"a": (2, 5, 3), "b": (2, 3, 7)},
    {"a": (1, 1, 1), "b": (1, 1, 1)},
    {"a": (3, 2, 5), "b": (3, 5, 1)},
]
GATHERED: list[Shapes] = [{"x": (*rows, 3), "ids": rows} for rows in SEQUENCES]


def fit(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return shapes["a"][2] == shapes["b"][1]


class Operators(CompositeComponent[EmptyConfig]):
    """All operators in one graph, with values that others read before, after and never."""

    config_class = EmptyConfig
    ports = (Port("x"), Port("ids", is_ids=True))

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        x, ids = inputs
        held = graph.add(Clamp("held", ClampConfig(minimum=-1.0, maximum=1.0)), graph.add(linear("first"), x))
        h = graph.add(Multiply("product"), graph.add(Scale("double", ScaleConfig(factor=2.0)), x), held)
        h = graph.add(LearnedScale("gamma", LearnedScaleConfig(init_value=0.7)), h)
        h = graph.add(Subtract("difference"), h, graph.add(Scale("half", ScaleConfig(factor=0.5)), h))
        h = graph.add(Add("sum"), h, graph.add(Multiply("square"), h, h))
        ones = graph.add(Constant("ones", ConstantConfig(shape=(WIDTH, WIDTH), value=1.0)), h)
        h = graph.add(MatrixProduct("matrices"), h, ones)
        row = graph.add(Constant("row", ConstantConfig(shape=(1, WIDTH), value=-1.0, takes_ids=True)), ids)
        h = graph.add(BroadcastAdd("shifted"), h, row)
        longer = graph.add(ClsToken("token", ClsTokenConfig(embedding_dim=WIDTH)), h)
        return graph.add(Add("both"), graph.add(GatherToken("gathered"), h, ids), graph.add(PoolTokens("mean"), longer))


ARITHMETIC_CASES: list[Case] = [
    *family(GatherToken, {}, [{"mode": "argmax"}, {"token_id": 2}], GATHERED, limits={"ids": 3}),
    *family(ClsToken, {"embedding_dim": 6}, [{}, {"initial_std": 0.3}, {"trainable": False}], widths(6, *SEQUENCES)),
    *family(ClsToken, {}, [{"embedding_dim": 1}], widths(1, (2, 3))),
    *family(PoolTokens, {}, POOLS, widths(3, *SEQUENCES)),
    *family(PoolTokens, {}, POOLS, [(2, 7, 5)], suffix="longer"),
    *(case for kind in (Add, Subtract, Multiply) for case in family(kind, {}, [{}], ANY_RANK)),
    *family(Add, {}, [{}], [(2, 5, 3)], suffix="prefill", options={INFERENCE: {"prefill_size": 5}}),
    *family(BroadcastAdd, {}, [{}], STRETCHED),
    *family(Scale, {}, FACTORS, ANY_RANK),
    *family(Clamp, {}, BOUNDS, ANY_RANK),
    *family(Constant, {}, [{"shape": (4,)}, {"shape": (3, 2), "value": 2.5}], [(2, 7), (3, 1, 5)]),
    *family(Constant, {"shape": (4,)}, [{"takes_ids": True}], [(2, 5)], limits={"input": 5}),
    *family(LearnedScale, {}, GAMMAS, ANY_RANK),
    *family(MatrixProduct, {}, [{}], PRODUCTS, takes=fit),
    structure(Operators, {"x": (2, 5, WIDTH), "ids": (2, 5)}, ids=3),
]

ROWS: list[Shapes] = [(8, 128, 256)]
LARGE_ARITHMETIC_CASES: list[Case] = [
    *family(GatherToken, {}, [{}, {"token_id": 8}], [{"x": (8, 128, 256), "ids": (8, 128)}], limits={"ids": 9}),
    *family(ClsToken, {"embedding_dim": 256}, [{}, {"trainable": False}], ROWS),
    *family(PoolTokens, {}, POOLS, ROWS),
    *(case for kind in (Add, Subtract, Multiply) for case in family(kind, {}, [{}], ROWS)),
    *family(BroadcastAdd, {}, [{}], [{"a": (8, 128, 256), "b": (8, 1, 256)}, {"a": (8, 1, 1), "b": (8, 128, 256)}]),
    *family(Scale, {}, FACTORS[:1], ROWS),
    *family(Clamp, {}, BOUNDS[:1], ROWS),
    *family(Constant, {"shape": (128, 256)}, [{}], [(8, 3)]),
    *family(LearnedScale, {}, GAMMAS[1:3], ROWS),
    *family(MatrixProduct, {}, [{}], [(16, 128, 128)], takes=fit),
]

ARITHMETIC_REFUSALS: list[Refused] = [
    config_refusal(GatherToken, {"mode": "last"}, "mode"),
    config_refusal(GatherToken, {"token_id": 1 << 63}, "token_id"),
    config_refusal(PoolTokens, {"mode": "median"}, "mode"),
    config_refusal(ClsToken, {"embedding_dim": 0}, "embedding_dim"),
    config_refusal(ClsToken, {"embedding_dim": 3, "initial_std": 0.0}, "initial_std"),
    config_refusal(Clamp, {"minimum": 1.0, "maximum": 0.5}, "minimum 1.0 must be at most maximum 0.5"),
    config_refusal(Clamp, {"minimum": float("-inf"), "maximum": 0.5}, "minimum"),
    config_refusal(Scale, {"factor": float("nan")}, "factor"),
    config_refusal(Scale, {}, "factor"),
    config_refusal(Constant, {"shape": ()}, "shape"),
    config_refusal(Constant, {"shape": (0,)}, "shape"),
    config_refusal(LearnedScale, {"init_value": float("inf")}, "init_value"),
    build_refusal(GatherToken, {}, {"x": (2, 5, 3), "ids": (2, 4)}, ShapeError, r"\(2, 5, 3\), got \(2, 4\)"),
    build_refusal(GatherToken, {}, {"x": (2, 5, 3), "ids": (3, 5)}, ShapeError, r"\(2, 5, 3\), got \(3, 5\)"),
    build_refusal(GatherToken, {}, {"x": (2, 3), "ids": (2, 3)}, ShapeError, "B, T, C"),
    build_refusal(GatherToken, {}, {"x": (2, 5, 3), "ids": (2, 5, 1)}, ShapeError, "expected ids of shape"),
    build_refusal(GatherToken, {}, {"x": (2, 5, 3)}, ShapeError, "expected shapes for x, ids"),
    build_refusal(GatherToken, {}, (2, 5, 3), ShapeError, "expected ids of shape"),
    build_refusal(ClsToken, {"embedding_dim": 6}, (2, 5, 7), ShapeError, "of 6"),
    build_refusal(ClsToken, {"embedding_dim": 6}, (2, 6), ShapeError, "B, T, C"),
    build_refusal(PoolTokens, {}, (2, 6), ShapeError, "B, T, C"),
    *(
        build_refusal(kind, {}, {"a": (2, 3), "b": (2, 1)}, ShapeError, r"one shape, got \(2, 3\) and \(2, 1\)")
        for kind in (Add, Subtract, Multiply)
    ),
    build_refusal(BroadcastAdd, {}, {"a": (2, 3), "b": (2, 5)}, ShapeError, r"got \(2, 3\) and \(2, 5\)"),
    build_refusal(BroadcastAdd, {}, {"a": (2, 3), "b": (2, 3, 1)}, ShapeError, "of one rank"),
    build_refusal(MatrixProduct, {}, {"a": (2, 5, 3), "b": (2, 5, 3)}, ShapeError, r"got \(2, 5, 3\) and"),
    build_refusal(MatrixProduct, {}, {"a": (2, 5, 3), "b": (1, 3, 7)}, ShapeError, r"and \(1, 3, 7\)"),
    build_refusal(MatrixProduct, {}, {"a": (2, 3), "b": (3, 7)}, ShapeError, "B, N, K"),
    *(
        build_refusal(kind, fields, (2, 5, 5), ConfigurationError, "chunks of a sequence", INFERENCE, prefill_size=2)
        for kind, fields in ((ClsToken, {"embedding_dim": 5}), (PoolTokens, {}), (Constant, {"shape": (3,)}))
    ),
]
