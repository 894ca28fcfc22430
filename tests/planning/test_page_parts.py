"""Parts of the page: places in the tree map, repeated layers, axes, curves."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mila.planning.page.components import Component, component_tree
from mila.planning.page.curve import ceiling, context_curve, series_of, short_number
from mila.planning.page.html import Markup, element, escaped, joined, percent, share_text, tick_text, ticks
from mila.planning.page.treemap import Rectangle, squarified
from mila.planning.report import SweepReport, TreeRow
from tests.planning.page_reports import GIB, inference_report, llama_rows, sweep_report

AREAS = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=40).map(lambda areas: sorted(areas, reverse=True))


@given(AREAS, st.floats(0.2, 5.0))
def test_areas_of_a_tree_map_are_in_proportion_and_fill_it(areas: list[float], width: float) -> None:
    frame = Rectangle(0, 0, width, 1)
    places = squarified(areas, frame)
    for area, place in zip(areas, places, strict=True):
        assert place.width * place.height == pytest.approx(area / sum(areas) * width, rel=1e-6)
        assert place.left >= -1e-9 and place.left + place.width <= width + 1e-6
        assert place.top >= -1e-9 and place.top + place.height <= 1 + 1e-6
    for one, other in combinations(places, 2):
        across = min(one.left + one.width, other.left + other.width) - max(one.left, other.left)
        down = min(one.top + one.height, other.top + other.height) - max(one.top, other.top)
        assert min(across, down) <= 1e-6


def test_equal_areas_are_squares() -> None:
    places = squarified([1.0] * 16, Rectangle(0, 0, 1, 1))
    assert {(round(place.width, 9), round(place.height, 9)) for place in places} == {(0.25, 0.25)}
    assert squarified([], Rectangle(0, 0, 1, 1)) == []


def plain(component: Component) -> str:
    return component.title.replace("\N{MULTIPLICATION SIGN}", "x")


def test_repeated_layers_are_one_component_all_the_way_down() -> None:
    rows = llama_rows(126, 64, 128, 1000, 256)
    root = component_tree(rows)
    assert root is not None
    names = [(depth, plain(component)) for depth, component in root.walk()]
    assert names[:4] == [(0, "model"), (1, "embedding"), (1, "block_0 … block_125 x126"), (2, "norm_1 x126")]
    assert (3, "fc_down x126") in names and len(names) == 13
    for _, component in root.walk():
        if component.children:
            assert sum(child.sizes.parameters for child in component.children) == component.sizes.parameters
    assert root.sizes.parameters == rows[0].parameter_bytes


def row(path: str, component: str = "Linear", size: int = 1) -> TreeRow:
    return TreeRow(
        path=path,
        depth=path.count("."),
        component=component,
        parameter_bytes=size,
        gradient_bytes=0,
        state_bytes=0,
        transient_bytes=0,
        fullest_bytes=0,
    )


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        (["a_0", "a_1"], ["a_0", "a_1"]),
        (["a_0", "a_1", "a_2"], ["a_0 … a_2 x3"]),
        (["a_0", "a_1", "a_3", "a_4", "a_5"], ["a_0", "a_1", "a_3 … a_5 x3"]),
        (["a_1", "a_2", "a_3", "b_4", "b_5", "b_6"], ["a_1 … a_3 x3", "b_4 … b_6 x3"]),
        (["a", "b", "a_0"], ["a", "b", "a_0"]),
    ],
)
def test_what_counts_as_repeated(names: list[str], titles: list[str]) -> None:
    root = component_tree([row("m", size=len(names)), *(row(f"m.{name}") for name in names)])
    assert root is not None and [plain(child) for child in root.children] == titles


def test_layers_of_another_class_are_not_repeated() -> None:
    kinds = ["A", "A", "A", "B", "A"]
    root = component_tree([row("m", size=5), *(row(f"m.x_{index}", kind) for index, kind in enumerate(kinds))])
    assert root is not None and [plain(child) for child in root.children] == ["x_0 … x_2 x3", "x_3", "x_4"]


def test_what_a_component_holds_itself_is_shown_and_several_roots_are_one_tree() -> None:
    root = component_tree([row("m", size=10), row("m.a", size=4), row("loss", size=1)])
    assert root is not None and root.sizes.parameters == 11
    assert [(depth, part.name, part.sizes.parameters) for depth, part in root.walk()] == [
        (0, "all", 11),
        (1, "m", 10),
        (2, "a", 4),
        (2, "(itself)", 6),
        (1, "loss", 1),
    ]
    assert component_tree([]) is None


def test_a_curve_has_a_line_per_dtype_and_the_cards_in_reach() -> None:
    sweep = sweep_report(inference_report())
    axis, lines = series_of(sweep)
    assert (axis, [(line.label, len(line.points)) for line in lines]) == (
        "context",
        [("float32", 8), ("bfloat16", 8), ("float8", 1)],
    )
    svg = context_curve(sweep)
    assert svg is not None and svg.count("<svg") == 2
    shown = [card for card in (8, 12, 16, 24, 40, 48, 80, 141) if f"card {card} GiB</text>" in svg]
    assert shown == [8, 12, 16, 24, 48, 80] and ">budget</text>" in svg


@pytest.mark.parametrize("change", [{"points": []}, {"varied": ["dtype"]}, {"points": "one"}, {"points": "problems"}])
def test_without_two_numbers_there_is_no_curve(change: dict[str, object]) -> None:
    sweep = sweep_report(inference_report())
    chosen = {"one": sweep.points[:1], "problems": sweep.points[-1:] * 2}
    change = {key: chosen.get(str(value), value) for key, value in change.items()}
    assert context_curve(SweepReport.model_construct(**{**dict(sweep), **change})) is None


@pytest.mark.parametrize(
    ("end", "marks"),
    [
        (24 * GIB, ["0 B", "5 GiB", "10 GiB", "15 GiB", "20 GiB"]),
        (1023 << 20, ["0 B", "200 MiB", "400 MiB", "600 MiB", "800 MiB", "1,000 MiB"]),
        (3, ["0 B", "1 B", "2 B", "3 B"]),
        (900 * GIB, ["0 B", "200 GiB", "400 GiB", "600 GiB", "800 GiB"]),
    ],
)
def test_ticks_are_round(end: int, marks: list[str]) -> None:
    assert [tick_text(tick) for tick in ticks(end, 6)] == marks


def test_an_axis_ends_above_the_next_mark_that_is_near() -> None:
    assert ceiling([15 * GIB], None) == int(16 * GIB * 1.06)
    assert ceiling([15 * GIB], 20 * GIB) == int(20 * GIB * 1.06)
    assert ceiling([300 * GIB], 8 * GIB) == int(300 * GIB * 1.06)
    assert ceiling([GIB], 100 * GIB) == int(GIB * 1.06)


def test_short_texts() -> None:
    assert [short_number(value) for value in (512, 1000, 1024, 131_072, 36_180)] == [
        "512",
        "1,000",
        "1k",
        "128k",
        "36,180",
    ]
    assert [share_text(*pair) for pair in ((0, 9), (1, 10_000), (1, 3), (9, 9), (0, 0))] == [
        "0 %",
        "< 0.1 %",
        "33.3 %",
        "100.0 %",
        "0 %",
    ]
    assert [percent(part) for part in (0, 0.125, 1 / 3, 1)] == ["0%", "12.5%", "33.333%", "100%"]


def test_elements_escape_what_is_not_markup() -> None:
    assert element("p", "a<b", Markup("<br>"), class_='"x"', hidden=True, id=None, data_b=0) == (
        '<p class="&quot;x&quot;" hidden data-b="0">a&lt;b<br></p>'
    )
    assert element("meta", name="a") == '<meta name="a">'
    assert escaped("é … 中\n\t\u200f\x9b") == "é … 中\\x0a\\x09\\u200f\\x9b"
    assert element("p", title=joined(["a\n", "<"], "\n")) == '<p title="a\\x0a\n&lt;"></p>'
