"""A tree map: areas in proportion to bytes, one view per component that has others in it, and per measure.

All views are in the page; links lead from one to the next, so that they also do without JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from mila.memory import format_bytes
from mila.planning.page.components import Component
from mila.planning.page.html import Markup, element, escaped, joined, percent, share_text

#: Of a view, width to height; narrow windows stretch it.
_ASPECT = 16 / 9
#: Parts of a view that are too small to be seen, or to be hit.
_SMALLEST = 0.003
#: What is drawn inside of a tile: how deep, and from which part of the view.
_DEEPEST = 3
_SMALLEST_OPENED = 0.03
#: A view with one tile says nothing: what fills this much of it is shown first instead.
_WHOLE = 0.95
_PARTS = {
    "parameters": "mostly parameters",
    "gradients": "mostly gradients",
    "state": "mostly state: moments, caches, tables",
    "fullest": "mostly what is alive at the fullest step",
}
_MEASURES = {
    "all": "everything",
    "parameters": "parameters",
    "gradients": "gradients",
    "state": "state",
    "fullest": "fullest step",
}


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A place in a view, in any unit."""

    left: float
    top: float
    width: float
    height: float

    @property
    def shorter(self) -> float:
        """The length of the shorter side."""
        return min(self.width, self.height)


def squarified(areas: Sequence[float], frame: Rectangle) -> list[Rectangle]:
    """Rectangles that fill the frame, in proportion to the areas, as square as rows allow.

    The squarified layout (Bruls, Huizing, van Wijk 2000): rows along the shorter side, each of them as long as the
    worst ratio of its rectangles gets no worse.

    Args:
        areas: positive, the largest first.
        frame: what is filled.
    """
    scale = frame.width * frame.height / sum(areas) if areas else 0.0
    left = [area * scale for area in areas]
    placed: list[Rectangle] = []
    while left:
        length = 1
        while length < len(left) and _worst(left[: length + 1], frame.shorter) <= _worst(left[:length], frame.shorter):
            length += 1
        row, left = left[:length], left[length:]
        frame = _place(row, frame, placed)
    return placed


def _worst(row: Sequence[float], side: float) -> float:
    """The ratio of the sides of its least square rectangle."""
    thickness = sum(row) / side
    return max(max(area / thickness**2, thickness**2 / area) for area in (row[0], row[-1]))


def _place(row: Sequence[float], frame: Rectangle, placed: list[Rectangle]) -> Rectangle:
    """Append the rectangles of a row; returns what is left of the frame."""
    thickness, position = sum(row) / frame.shorter, 0.0
    is_upright = frame.width >= frame.height
    for area in row:
        length = area / thickness
        if is_upright:
            placed.append(Rectangle(frame.left, frame.top + position, thickness, length))
        else:
            placed.append(Rectangle(frame.left + position, frame.top, length, thickness))
        position += length
    if is_upright:
        return Rectangle(frame.left + thickness, frame.top, max(frame.width - thickness, 1e-12), frame.height)
    return Rectangle(frame.left, frame.top + thickness, frame.width, max(frame.height - thickness, 1e-12))


@dataclass(frozen=True, slots=True)
class _View:
    """A component that can be opened, and the way to it."""

    number: int
    component: Component
    way: tuple[_View, ...]

    def id(self, measure: str) -> str:
        return f"map-{measure}-{self.number}"


def tree_map(root: Component) -> Markup:
    """All views of the tree; the first is the root, with everything."""
    measures = [name for name in _MEASURES if getattr(root.sizes, name)]
    views = list(_views(root, (), count()))
    first = _first(views, measures[0])
    drawn = [
        _drawn(view, measure, measures, views, is_first=view is first and measure == measures[0])
        for measure in measures
        for view in views
        if getattr(view.component.sizes, measure)
    ]
    return joined([_key(root), element("div", *drawn, class_="map", id="map")])


def _key(root: Component) -> Markup:
    """What the colours mean."""
    return element(
        "ul",
        *(
            element("li", element("span", class_=f"swatch of-{name}", aria_hidden="true"), title)
            for name, title in _PARTS.items()
            if getattr(root.sizes, name)
        ),
        class_="mapkey",
    )


def _first(views: Sequence[_View], measure: str) -> _View:
    """The view that the page opens with: the root, or the component that is nearly all of it."""
    first, total = views[0], getattr(views[0].component.sizes, measure)
    for view in views:
        if first in view.way[-1:] and getattr(view.component.sizes, measure) >= _WHOLE * total:
            first = view
    return first


def _views(component: Component, way: tuple[_View, ...], numbers: Iterator[int]) -> Iterator[_View]:
    if component.children:
        view = _View(next(numbers), component, way)
        yield view
        for child in component.children:
            yield from _views(child, (*way, view), numbers)


def _drawn(view: _View, measure: str, measures: Sequence[str], views: Sequence[_View], *, is_first: bool) -> Markup:
    component = view.component
    total = int(getattr(component.sizes, measure))
    inner = {id(each.component): each for each in views}
    tiles, small = _tiles(component, measure, _ASPECT)
    items = [_tile(child, place, measure, total, inner.get(id(child))) for child, place in tiles]
    summary = f"{component.title}: {_MEASURES[measure]}, {format_bytes(total)}"
    left_out = None
    if small:
        names = ", ".join(f"{child.title} {format_bytes(getattr(child.sizes, measure))}" for child in small)
        left_out = element("p", f"Too small to be drawn: {names}.", class_="note")
    return element(
        "section",
        element("div", _trail(view, measure), _choices(view, measure, measures), class_="maphead"),
        element("ul", *items, class_="tiles", aria_label=summary),
        left_out or "",
        id=view.id(measure),
        class_="view first" if is_first else "view",
        aria_label=summary,
        tabindex=-1,
        data_parent=view.way[-1].id(measure) if view.way else None,
    )


def _tiles(
    component: Component, measure: str, aspect: float
) -> tuple[list[tuple[Component, Rectangle]], list[Component]]:
    """The children with their places in a frame of width ``aspect`` and height 1, and those that have none."""
    size = {id(child): int(getattr(child.sizes, measure)) for child in component.children}
    ordered = sorted((child for child in component.children if size[id(child)]), key=lambda child: -size[id(child)])
    total = sum(size.values())
    large = [child for child in ordered if size[id(child)] >= _SMALLEST * total]
    places = squarified([float(size[id(child)]) for child in large], Rectangle(0, 0, aspect, 1))
    return list(zip(large, places, strict=True)), ordered[len(large) :]


def _tile(child: Component, place: Rectangle, measure: str, total: int, inner: _View | None) -> Markup:
    size = int(getattr(child.sizes, measure))
    said = f"{child.title}, {format_bytes(size)}, {share_text(size, total)}"
    label = element(
        "span",
        element("b", child.title),
        " ",
        element("span", f"{format_bytes(size)} · {share_text(size, total)}", class_="size"),
        class_="label",
    )
    content = joined([label, _inside(child, place, measure)])
    parts = [f"{_MEASURES[name]} {format_bytes(getattr(child.sizes, name))}" for name in _PARTS]
    hint = joined([said, f"{child.kind}: {', '.join(parts)}"], "\n")
    if inner is None:
        box = element("span", content, class_=f"tile {_colour(child, measure)}", title=hint)
    else:
        box = element(
            "a",
            content,
            class_=f"tile {_colour(child, measure)}",
            href=f"#{inner.id(measure)}",
            title=hint,
            aria_label=f"{said}. Open.",
        )
    return element("li", box, style=_position(place, _ASPECT))


def _inside(component: Component, place: Rectangle, measure: str, depth: int = 1) -> str:
    """What is in a tile, drawn but not to be reached: a link leads there."""
    aspect = place.width / place.height
    tiles, _ = _tiles(component, measure, aspect)
    boxes = []
    for child, inner in tiles:
        in_frame = Rectangle(0, 0, inner.width * place.height, inner.height * place.height)
        is_large = in_frame.width * in_frame.height >= _SMALLEST_OPENED * _ASPECT and depth < _DEEPEST
        within = _inside(child, in_frame, measure, depth + 1) if is_large else ""
        size = format_bytes(getattr(child.sizes, measure))
        label = element("span", child.title, " ", element("span", size, class_="size"), class_="label")
        style = _position(inner, aspect)
        boxes.append(element("span", label, within, class_=f"small {_colour(child, measure)}", style=style))
    return element("span", *boxes, class_="inside", aria_hidden="true" if depth == 1 else None) if boxes else ""


def _position(place: Rectangle, aspect: float) -> str:
    return (
        f"left:{percent(place.left / aspect)};top:{percent(place.top)};"
        f"width:{percent(place.width / aspect)};height:{percent(place.height)}"
    )


def _colour(component: Component, measure: str) -> str:
    """The class of its colour: of the measure, or of what most of it is."""
    return f"of-{component.sizes.largest if measure == 'all' else measure}"


def _trail(view: _View, measure: str) -> Markup:
    """The way from the root, with links."""
    steps = [element("li", element("a", each.component.title, href=f"#{each.id(measure)}")) for each in view.way]
    here = element("li", element("span", view.component.title, aria_current="location"))
    return element("nav", element("ol", *steps, here), class_="trail", aria_label="Where the map is")


def _choices(view: _View, measure: str, measures: Sequence[str]) -> Markup:
    """Links to the same component in the other measures."""
    links = []
    for name in measures:
        is_there = bool(getattr(view.component.sizes, name))
        target = view if is_there else (*view.way, view)[0]
        current = "true" if name == measure else None
        links.append(element("a", escaped(_MEASURES[name]), href=f"#{target.id(name)}", aria_current=current))
    return element("nav", *links, class_="measures", aria_label="What the areas measure")
