"""Cases of the components that cut, join, reorder, pad and reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mila.components import (
    Chunk,
    ChunkConfig,
    Concat,
    ConcatConfig,
    ContextAttention,
    CrossAttention,
    Flatten,
    Mean,
    Pad,
    Permute,
    Reshape,
    ReshapeConfig,
    Residual,
    Split,
    SplitConfig,
    Sum,
    Transpose,
    TransposeConfig,
)
from mila.core import CompositeComponent, Graph, Reference
from mila.errors import ConfigurationError, ShapeError
from tests.promises.case import INFERENCE, Case, Refused, constructor, family
from tests.promises.refused_cases import build_refusal, config_refusal
from tests.promises.structures import EMPTY, WIDTH, EmptyConfig, linear

Takes = Callable[[Mapping[str, tuple[int, ...]]], bool]


def of_input(rule: Callable[[int], bool], axis: int = 1) -> Takes:
    """Return the rule for an axis of the only input."""
    return lambda shapes: rule(shapes["input"][axis])


def longer_than(extent: int) -> Takes:
    return of_input(lambda got: got > extent)


def fits_six(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    extents = shapes["input"][1:]
    return extents in ((6,), (3, 2), (1, 3, 2))


CUTS = [
    *family(Split, {}, [{"size": 2}, {"size": 3}], [(2, 7), (3, 5, 4), (2, 4, 3, 5)], takes=longer_than(2)),
    *family(Split, {"dim": 2}, [{"size": 1}, {"size": 4}], [(1, 3, 5), (2, 3, 5, 4)]),
    *family(Split, {}, [{"size": 1, "dim": 3}], [(2, 3, 1, 2)]),
    *family(Chunk, {}, [{"chunks": 2}], [(2, 6), (3, 4, 5), (2, 4, 3, 5)], takes=of_input(lambda got: got % 2 == 0)),
    *family(Chunk, {"chunks": 3}, [{"dim": 2}, {"dim": 3}], [(2, 5, 6, 3), (1, 3, 3, 9)]),
    *family(Chunk, {"chunks": 2, "dim": 0}, [{}], [(4, 3), (6, 5, 2)], takes=of_input(lambda got: got % 2 == 0, 0)),
    *family(Chunk, {}, [{"chunks": 1}], [(2, 5, 3)]),
]
JOINS = [
    *family(Concat, {}, [{}], [(2, 3), {"x0": (2, 3, 5), "x1": (2, 2, 5)}, {"x0": (1, 1, 2, 3), "x1": (1, 2, 2, 3)}]),
    *family(Concat, {"axis": 0}, [{}], [{"x0": (2, 3), "x1": (3, 3)}, {"x0": (2, 3, 5), "x1": (4, 3, 5)}]),
    *family(Concat, {"axis": 2}, [{}], [{"x0": (2, 3, 5), "x1": (2, 3, 1)}, (2, 3, 1, 5)]),
    *family(Concat, {"axis": 3}, [{}], [{"x0": (2, 3, 2, 1), "x1": (2, 3, 2, 4)}]),
    *family(Concat, {"inputs": 3}, [{}], [(2, 3, 5), {"x0": (1, 7), "x1": (1, 1), "x2": (1, 3)}]),
]
ORDERS = [
    *family(Reshape, {"dims": (6,)}, [{}], [(3, 6), (2, 3, 2), (2, 1, 3, 2)], takes=fits_six),
    *family(Reshape, {}, [{"dims": (3, 2)}], [(2, 6)]),
    *family(Reshape, {}, [{"dims": (5, 2, 3)}], [(1, 5, 6)], takes=of_input(lambda got: got == 5)),
    *family(Flatten, {}, [{}], [(2, 7), (3, 5, 2), (2, 3, 5, 4), (1, 1, 1)]),
    *family(Permute, {}, [{"axes": (1,)}], [(3, 5)]),
    *family(Permute, {}, [{"axes": (2, 1)}, {"axes": (1, 2)}], [(2, 5, 3), (1, 1, 7)]),
    *family(Permute, {}, [{"axes": (3, 1, 2)}, {"axes": (2, 3, 1)}], [(2, 3, 5, 4)]),
    *family(Transpose, {"dim0": 1}, [{"dim1": 2}, {"dim1": 1}], [(2, 5, 3), (2, 3, 5, 4)]),
    *family(Transpose, {}, [{"dim0": 3, "dim1": 1}, {"dim0": 3, "dim1": 2}], [(2, 3, 5, 4)]),
]
ENDS = [
    *family(Pad, {"pairs": ((1, 2),)}, [{}, {"value": 0.5}, {"mode": "replicate"}], [(2, 5), (3, 5, 3), (2, 3, 1, 4)]),
    *family(Pad, {"pairs": ((2, 1),), "mode": "reflect"}, [{}], [(2, 3), (3, 5, 7), (2, 3, 1, 4)], suffix="reflect"),
    *family(
        Pad,
        {"pairs": ((1, 0), (0, 3))},
        [{}, {"value": -1.5}, {"mode": "replicate"}],
        [(2, 5, 3), (2, 3, 1, 4)],
        suffix="two axes",
    ),
    *family(
        Pad, {"pairs": ((1, 1), (2, 1)), "mode": "reflect"}, [{}], [(2, 4, 3)], suffix="reflect", takes=longer_than(2)
    ),
    *family(
        Pad,
        {"pairs": ((1, 0), (2, 1), (0, 2)), "mode": "reflect"},
        [{}],
        [(2, 4, 3, 2)],
        suffix="reflect",
        takes=longer_than(2),
    ),
    *family(Pad, {"pairs": ((1, 0), (2, 1), (0, 2))}, [{"mode": "replicate"}, {}], [(2, 4, 3, 2)]),
]
REDUCTIONS = [
    *(
        case
        for component in (Mean, Sum)
        for case in (
            *family(component, {}, [{"dim": 1}, {"dim": 1, "keepdim": True}], [(3, 5), (2, 5, 3), (2, 3, 1, 4)]),
            *family(component, {}, [{"dim": 2, "keepdim": True}, {"dim": 2}], [(2, 3, 5), (2, 3, 5, 4)]),
            *family(component, {}, [{"dim": 3}, {"dim": 3, "keepdim": True}], [(2, 3, 5, 4)]),
        )
    )
]


class Rearranged(CompositeComponent[EmptyConfig]):
    """Shapes said anew over their input and beside a reader, two halves exchanged, and one value joined to itself."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(linear("first"), *inputs)
        apart = graph.add(Reshape("apart", ReshapeConfig(dims=(2, 2, WIDTH))), h)
        again = graph.add(Reshape("again", ReshapeConfig(dims=(4, WIDTH))), apart)
        left, right = graph.add_many(Chunk("halves", ChunkConfig(chunks=2, dim=2)), again)
        h = graph.add(Residual("sum"), h, graph.add(Concat("exchanged", ConcatConfig(axis=2)), right, left))
        _, rest = graph.add_many(Split("cut", SplitConfig(size=1)), h)
        h = graph.add(Concat("twice"), rest, rest)
        h = graph.add(Transpose("turned", TransposeConfig(dim0=1, dim1=2)), h)
        return graph.add(Flatten("flat"), graph.add(linear("last", 6, 2), h))


class OneRow(CompositeComponent[EmptyConfig]):
    """Another shape and back between two projections, built for a single position."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(linear("first"), *inputs)
        h = graph.add(Reshape("apart", ReshapeConfig(dims=(2, 1, WIDTH // 2))), h)
        return graph.add(linear("last"), graph.add(Flatten("flat"), h))


ATTENTION = {"num_heads": 2, "head_dim": 3}
HEADS = {"queries": (2, 5, 6), "keys": (2, 3, 6), "values": (2, 3, 6)}
CROSS = {"embedding_dim": 6, "num_heads": 2}
CONTEXTS = [
    *family(ContextAttention, ATTENTION, [{}, {"probability": 0.5}], [HEADS, (1, 4, 6)]),
    *family(ContextAttention, {}, [{"num_heads": 1, "head_dim": 1}], [(2, 1, 1), (1, 3, 1)]),
    *family(ContextAttention, {}, [{"num_heads": 3, "head_dim": 5}], [(1, 7, 15)]),
    *family(
        CrossAttention,
        {**CROSS, "context_dim": 5},
        [{}, {"bias": False}, {"trainable": False}, {"dropout": 0.5}],
        [{"x": (2, 5, 6), "context": (2, 3, 5)}, {"x": (1, 1, 6), "context": (1, 7, 5)}],
    ),
    *family(CrossAttention, {}, [CROSS], [{"x": (2, 3, 6), "context": (2, 5, 6)}]),
    *family(CrossAttention, {}, [{"embedding_dim": 3, "num_heads": 3}], [(2, 4, 3)]),
]


STRUCTURES = [
    Case("Rearranged", constructor(Rearranged, EMPTY), (EMPTY,), (3, 4, WIDTH), takes=of_input(lambda got: got == 4)),
    Case("OneRow", constructor(OneRow, EMPTY), (EMPTY,), (1, 1, WIDTH)),
]
SHAPE_CASES: list[Case] = [*CUTS, *JOINS, *ORDERS, *ENDS, *REDUCTIONS, *CONTEXTS, *STRUCTURES]

ROWS = [(8, 128, 256)]
WIDE = [(8, 128, 512)]
LARGE_SHAPE_CASES: list[Case] = [
    *family(Split, {}, [{"size": 256, "dim": 2}], WIDE),
    *family(Chunk, {}, [{"chunks": 2, "dim": 2}], WIDE),
    *family(Concat, {}, [{"axis": 2}], ROWS),
    *family(Reshape, {}, [{"dims": (16, 16)}], [(1024, 256)]),
    *family(Flatten, {}, [{}], ROWS),
    *family(Permute, {}, [{"axes": (2, 1)}], ROWS),
    *family(Transpose, {}, [{"dim0": 1, "dim1": 2}], ROWS),
    *family(Pad, {"pairs": ((3, 2), (0, 0))}, [{"mode": mode} for mode in ("constant", "reflect", "replicate")], ROWS),
    *(
        case
        for component in (Mean, Sum)
        for case in family(component, {}, [{"dim": 1}, {"dim": 2, "keepdim": True}], ROWS)
    ),
    *family(ContextAttention, {"num_heads": 8, "head_dim": 32}, [{}, {"probability": 0.5}], ROWS),
    *family(CrossAttention, {"embedding_dim": 256, "num_heads": 8}, [{}], ROWS),
]


def refused_shape(component: Any, fields: dict[str, Any], shapes: Any, message: str) -> Refused:
    return build_refusal(component, fields, shapes, ShapeError, message)


SHAPE_REFUSALS: list[Refused] = [
    config_refusal(Split, {"size": 0}, "size"),
    config_refusal(Split, {"size": 1, "dim": 0}, "dim"),
    config_refusal(Chunk, {"chunks": 0}, "chunks"),
    config_refusal(Chunk, {"chunks": 2, "dim": -1}, "dim"),
    config_refusal(Concat, {"inputs": 1}, "inputs"),
    config_refusal(Reshape, {"dims": ()}, "dims"),
    config_refusal(Reshape, {"dims": (2, -1)}, "dims"),
    config_refusal(Permute, {"axes": (0, 1)}, "axes must be 1 to 2, each once"),
    config_refusal(Permute, {"axes": (2, 2)}, "axes must be 1 to 2, each once"),
    config_refusal(Transpose, {"dim0": 0, "dim1": 1}, "dim0"),
    config_refusal(Pad, {"pairs": ()}, "pairs"),
    config_refusal(Pad, {"pairs": ((0, -1),)}, "pairs"),
    config_refusal(Pad, {"pairs": ((0, 1),), "mode": "reflect", "value": 1.0}, "value is for mode 'constant'"),
    config_refusal(Mean, {"dim": 0}, "dim"),
    config_refusal(Sum, {"dim": 4}, "dim"),
    config_refusal(ContextAttention, {**ATTENTION, "probability": 1.0}, "probability"),
    config_refusal(CrossAttention, {"embedding_dim": 7, "num_heads": 2}, "num_heads 2 must divide embedding_dim 7"),
    config_refusal(CrossAttention, {**CROSS, "dropout": 1.0}, "dropout"),
    refused_shape(ContextAttention, ATTENTION, {**HEADS, "keys": (2, 4, 6)}, "keys and values of one shape"),
    refused_shape(ContextAttention, ATTENTION, {**HEADS, "queries": (1, 5, 6)}, "a row for each of the 1"),
    refused_shape(ContextAttention, ATTENTION, (2, 5, 5), "of 6"),
    refused_shape(ContextAttention, ATTENTION, (5, 6), "B, T, H D"),
    refused_shape(CrossAttention, CROSS, {"x": (2, 5, 6), "context": (2, 3, 5)}, "case.k_proj"),
    build_refusal(
        CrossAttention, CROSS, (2, 5, 6), ConfigurationError, "chunks of a sequence", INFERENCE, prefill_size=2
    ),
    refused_shape(Split, {"size": 5}, (2, 5), "axis 1 expected more than 5 elements, got 5"),
    refused_shape(Split, {"size": 1, "dim": 2}, (2, 5), r"expected an input with an axis 2, got \(2, 5\)"),
    refused_shape(Chunk, {"chunks": 2}, (2, 5), "axis 1 expected a multiple of 2, got 5"),
    refused_shape(Chunk, {"chunks": 2, "dim": 0}, (3, 5), "axis 0 expected a multiple of 2, got 3"),
    refused_shape(Concat, {}, {"x0": (2, 3), "x1": (3, 3)}, "inputs that differ along axis 1 only"),
    refused_shape(Concat, {}, {"x0": (2, 3), "x1": (2, 3, 1)}, "inputs that differ along axis 1 only"),
    refused_shape(Concat, {"axis": 2}, (2, 3), "expected an input with an axis 2"),
    refused_shape(Reshape, {"dims": (2, 2)}, (4, 5), "expected 4 elements after the batch"),
    refused_shape(Reshape, {"dims": (1,)}, (4,), "expected 1 elements after the batch"),
    refused_shape(Flatten, {}, (4,), "2 or more axes"),
    refused_shape(Permute, {"axes": (2, 1)}, (2, 3), "expected an input of 3 axes"),
    refused_shape(Transpose, {"dim0": 1, "dim1": 2}, (2, 3), "expected an input with an axis 2"),
    refused_shape(Pad, {"pairs": ((1, 1), (1, 1))}, (2, 3), "expected more than 2 axes"),
    refused_shape(Pad, {"pairs": ((0, 3),), "mode": "reflect"}, (2, 3), "axis 1 expected more than 3 elements"),
    refused_shape(Mean, {"dim": 2}, (2, 3), "expected an input with an axis 2"),
    refused_shape(Sum, {"dim": 3}, (2, 3, 4), "expected an input with an axis 3"),
]
