"""The drawing: everything is in it, nothing lies over anything else, and it is the same bytes every time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mila
from mila.network_language import BUILT_IN, Argument, Example, Operator, ResolvedNetwork
from mila.network_language.catalogue import resolve_example
from mila.network_language.drawing import draw
from mila.network_language.layering import BEND_GAP, BOX_GAP, Box, Layout, Wire, lay_out
from tests.network_language.network_cases import CASES, resolve_case
from tests.network_language.programs import valid_programs

SVG = "{http://www.w3.org/2000/svg}"
RESIDUAL = "".join("r = linear(h, 32)\nr = gelu(r)\nr = linear(r, 8)\nh = add(h, r)\n" for _ in range(4))
PARTS = ", ".join(f"a{index}" for index in range(12))


def resolved(source: str, inputs: object, outputs: object, **options: Any) -> ResolvedNetwork:
    shapes: dict[str, Any] = {"input_shape": inputs, "output_shape": outputs}
    return mila.resolve(source, **shapes, **options)


NETWORKS: dict[str, Callable[[], ResolvedNetwork]] = {
    **{case["id"]: partial(resolve_case, case) for case in CASES if case["expect"]["ok"]},
    **{
        f"{operator.alias}-example": partial(resolve_example, example)
        for operator in BUILT_IN.operators
        for example in operator.examples
    },
    "identity": partial(resolved, "", ("B", 4), ("B", 4)),
    "residual": partial(resolved, f"h = linear(x, 8)\n{RESIDUAL}linear(h)", ("B", 4), ("B", 2)),
    "blocks": partial(resolved, "transformer_block(2)\n" * 12 + "linear()", ("B", 6, 8), ("B", 6, 3)),
    "wide": partial(resolved, f"{PARTS} = chunk(12)\nmul(x, concat({PARTS}))", ("B", 24), ("B", 24)),
    "twice": partial(resolved, "h = linear(x, 8)\nadd(h, h)", ("B", 4), ("B", 8)),
    "outputs": partial(resolved, "a = linear(x, 8)\nb = linear(a, 2)\nc = a", ("B", 4), {"c": ("B", 8), "b": ("B", 2)}),
}
Rectangle = tuple[float, float, float, float]


def rectangles(root: ElementTree.Element) -> dict[str, Rectangle]:
    found: dict[str, Rectangle] = {}
    for group in root.iter(f"{SVG}g"):
        rectangle = group.find(f"{SVG}rect[@class='box']")
        if rectangle is not None:
            x, y, width, height = (float(rectangle.attrib[name]) for name in ("x", "y", "width", "height"))
            found[group.attrib["id"]] = (x, y, x + width, y + height)
    return found


def points(path: str) -> list[tuple[float, float]]:
    """Points along a path of moves, vertical lines and curves."""
    found: list[tuple[float, float]] = []
    for command, rest in re.findall(r"([MVC])([^MVC]*)", path):
        numbers = [float(number) for number in rest.split()]
        if command == "M":
            found.append((numbers[0], numbers[1]))
        elif command == "V":
            x, y = found[-1]
            found += [(x, y + (numbers[0] - y) * step / 8) for step in range(1, 9)]
        else:
            start = found[-1]
            corners = [start, *zip(numbers[::2], numbers[1::2], strict=True)]
            for step in range(1, 17):
                t = step / 16
                weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
                x, y = (sum(w * corner[axis] for w, corner in zip(weights, corners, strict=True)) for axis in (0, 1))
                found.append((x, y))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_everything_is_drawn_and_nothing_overlaps(name: str) -> None:
    check_drawing(NETWORKS[name]())


@settings(deadline=None, max_examples=50)
@given(valid_programs())
def test_everything_of_any_network_is_drawn_and_nothing_overlaps(program: tuple[dict[str, Any], object]) -> None:
    check_drawing(mila.resolve(**program[0]))


def check_drawing(network: ResolvedNetwork) -> None:
    """Every node, input, output and connection is there; no box over another, no connection through a box."""
    root = ElementTree.fromstring(draw(network))
    boxes = rectangles(root)
    assert [*boxes] == [
        *(f"input-{tensor.name}" for tensor in network.inputs),
        *(f"node-{node.id}" for node in network.nodes),
        *(f"output-{tensor.name}" for tensor in network.outputs),
    ]
    expected = [(ref, f"node:{node.id}/{port}") for node in network.nodes for port, ref in node.inputs.items()]
    expected += [(tensor.ref, f"output:{tensor.name}") for tensor in network.outputs]
    edges = [path for path in root.iter(f"{SVG}path") if path.get("class") == "edge"]
    assert [(edge.get("data-from"), edge.get("data-to")) for edge in edges] == expected
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    transform = next(group.attrib["transform"] for group in root.iter(f"{SVG}g") if "transform" in group.attrib)
    dx, dy = map(float, re.findall("[0-9]+", transform))
    values = [*boxes.values()]
    for index, (left, top, right, bottom) in enumerate(values):
        assert 0 < left + dx < right + dx < width and 0 < top + dy < bottom + dy < height
        assert all(
            right < other[0] or other[2] < left or bottom < other[1] or other[3] < top for other in values[:index]
        )
    for edge in edges:
        inside = [
            (x, y)
            for x, y in points(edge.attrib["d"])
            for left, top, right, bottom in values
            if left < x < right and top < y < bottom
        ]
        assert not inside, f"{edge.get('data-from')} to {edge.get('data-to')} runs through a box"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_box_says_what_it_does(name: str) -> None:
    network = NETWORKS[name]()
    root = ElementTree.fromstring(draw(network))
    counts = network.parameter_counts()
    groups = {group.get("id"): "\n".join(group.itertext()) for group in root.iter(f"{SVG}g") if group.get("id")}
    for node in network.nodes:
        text = groups[f"node-{node.id}"]
        assert node.id in text and node.operator.alias in text
        assert all(f"[{', '.join(map(str, shape))}]" in text for shape in node.output_shapes.values())
        assert (f"{counts[node.id]:,} parameter" in text) == (counts[node.id] > 0)
    labels = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "port"]
    named = [port for node in network.nodes if len(node.inputs) > 1 for port in node.inputs]
    several = [port for node in network.nodes if len(node.output_shapes) > 1 for port in node.output_shapes]
    assert {*labels} <= {*named, *several} and {*named} <= {*labels}


def test_arguments_are_shown_where_neither_shape_nor_default_say_them() -> None:
    text = draw(resolved("linear(8, bias=False)\nattention(2, causal=True)\nreshape(2, 12)", ("B", 3, 4), ("B", 2, 12)))
    for shown in ("bias=False", "heads=2, causal=True", "0 parameters", "out_features=8"):
        assert (f">{shown}<" in text) == (shown not in ("0 parameters", "out_features=8"))
    assert "frozen" in draw(resolved("linear(trainable=False)", ("B", 3), ("B", 4)))


def test_it_is_the_same_in_every_process() -> None:
    program = (
        "import sys, mila\nfrom mila.network_language.drawing import draw\n"
        f"network = mila.resolve({f'h = linear(x, 8){chr(10)}{RESIDUAL}linear(h)'!r}, "
        "input_shape=('B', 4), output_shape=('B', 2))\nsys.stdout.write(draw(network))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == draw(NETWORKS["residual"]())


def test_it_needs_nothing_else() -> None:
    text = draw(NETWORKS["residual"]())
    assert {*re.findall(r"https?://[^\"]*", text)} == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in text and "url(#head)" in text


def test_what_a_stranger_wrote_is_escaped() -> None:
    label = Operator(
        alias="label",
        identity="label@1",
        category='"><script>',
        summary="A label.",
        documentation="It does nothing.",
        pattern="x[B, D] -> out[B, D]",
        arguments=(Argument(name="text", type="str", help="Any."),),
        examples=(Example(source="label('')", input_shape=("B", 8), output_shape=("B", 8)),),
    )
    source = "label('<b>&\"\\'\\x00\\x1b\\ud800 ]]> 漢字')"
    network = resolved(source, ("B", 8), ("B", 8), registry=BUILT_IN.extended(label))
    text = draw(network)
    group = next(each for each in ElementTree.fromstring(text).iter(f"{SVG}g") if each.get("id") == "node-n0")
    assert "<b>&" in "".join(group.itertext())
    assert "<b>" not in text and "<script>" not in text
    text.encode()


def gaps(boxes: list[Box], layout: Layout) -> list[tuple[int, int]]:
    """Pairs of the distance between neighbours in a row and the least that it may be."""
    places: set[tuple[int, int, int, int]] = {
        (placed.row_top, placed.x, box.width // 2, index)
        for index, (placed, box) in enumerate(zip(layout.boxes, boxes, strict=True))
    }
    places |= {(top, x, 0, -1) for bends in layout.bends for x, top, _ in bends}
    found = []
    for (row, x, half, index), (other_row, other_x, other_half, other) in pairwise(sorted(places)):
        if row == other_row:
            found.append((other_x - other_half - x - half, BOX_GAP if min(index, other) >= 0 else BEND_GAP))
    return found


@st.composite
def graphs(draw_value: st.DrawFn) -> tuple[list[Box], list[Wire]]:
    count = draw_value(st.integers(1, 14))
    boxes = [Box(2 * draw_value(st.integers(20, 150)), draw_value(st.integers(20, 90))) for _ in range(count)]
    wires = []
    for target in range(1, count):
        for inlet in range(draw_value(st.integers(0, 3))):
            wires.append(Wire(draw_value(st.integers(0, target - 1)), draw_value(st.integers(0, 1)), target, inlet))
    return boxes, wires


@settings(deadline=None, max_examples=200)
@given(graphs())
def test_any_graph_has_its_places_apart_and_in_rows(graph: tuple[list[Box], list[Wire]]) -> None:
    boxes, wires = graph
    layout = lay_out(boxes, wires)
    assert layout == lay_out(boxes, wires)
    assert all(gap >= least for gap, least in gaps(boxes, layout))
    for wire, bends in zip(wires, layout.bends, strict=True):
        rows = [layout.boxes[wire.source].row_bottom]
        for _, top, bottom in [*bends, (0, layout.boxes[wire.target].row_top, layout.boxes[wire.target].row_bottom)]:
            assert rows[-1] < top <= bottom
            rows.append(bottom)
    for index, placed in enumerate(layout.boxes):
        assert placed.row_top <= placed.top and placed.bottom <= placed.row_bottom
        assert sorted(layout.inlet_order[index]) == [i for i, wire in enumerate(wires) if wire.target == index]


def test_rows_are_ordered_such_that_fewer_wires_cross() -> None:
    boxes = [Box(40, 20)] * 8
    wires = [Wire(source, 0, 7 - source, 0) for source in range(4)]
    layout = lay_out(boxes, wires)
    centres = [placed.x for placed in layout.boxes]
    assert centres[:4] == centres[7:3:-1], "each is straight below the other"


def test_what_is_too_large_to_be_drawn_is_refused() -> None:
    boxes = [Box(40, 20)] * 300
    wires = [Wire(index, 0, target, 0) for index in range(298) for target in (index + 1, 299)]
    with pytest.raises(mila.NetworkError, match=r"E_RESOURCE: a drawing has at most 20,000 boxes and bends"):
        lay_out(boxes, wires)
