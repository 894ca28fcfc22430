"""The layout of a layered drawing: boxes in rows, wires that go down from row to row and never through a box.

The method is that of Sugiyama, Tagawa and Toda (1981): a row for each box by the longest path that leads to it; a wire
across several rows bends through a place of its own in each; places in a row are ordered by the barycentres of their
neighbours. Horizontal positions keep that order: each place wants to be below its neighbours, and what a row can do
closest to that, in least squares, is an isotonic regression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mila.errors import NetworkError

MOST_PLACES = 20_000
"""Boxes and bends of one drawing."""
ROW_GAP, BOX_GAP, BEND_GAP = 34, 26, 14
_MOST_EXTRA_GAP = 90
_ORDERINGS, _ALIGNMENTS = 16, 12
#: Boxes stay where they are and bends go round them.
_BOX_WEIGHT, _BEND_WEIGHT = 1000.0, 1.0


@dataclass(frozen=True)
class Box:
    """A box to be placed.

    Attributes:
        width: in pixels.
        height: in pixels.
        is_last: whether it belongs into the last row.
    """

    width: int
    height: int
    is_last: bool = False


@dataclass(frozen=True)
class Wire:
    """A connection from an outlet of one box to an inlet of a later one; boxes, outlets and inlets by number."""

    source: int
    outlet: int
    target: int
    inlet: int


@dataclass(frozen=True)
class PlacedBox:
    """Where a box is: its centre, its top and bottom, and those of the row it stands in."""

    x: int
    top: int
    bottom: int
    row_top: int
    row_bottom: int


@dataclass(frozen=True)
class Layout:
    """A finished layout.

    Attributes:
        boxes: where each box is.
        bends: where each wire goes through the rows between its boxes: ``(x, row top, row bottom)``.
        inlet_order: of each box, its wires in the order in which they arrive, left to right.
        outlet_order: of each box, its outlets from left to right.
        width: of everything.
        height: of everything.
    """

    boxes: list[PlacedBox]
    bends: list[list[tuple[int, int, int]]]
    inlet_order: list[list[int]]
    outlet_order: list[list[int]]
    width: int
    height: int


@dataclass
class _Places:
    """Boxes and bends by number (boxes first), and who is next to whom in the rows above and below."""

    rank: list[int]
    above: list[list[int]]
    below: list[list[int]]
    boxes: int
    passes: list[list[int]] = field(default_factory=list)

    def add_bend(self, rank: int, above: int) -> int:
        self.rank.append(rank)
        self.above.append([])
        self.below.append([])
        self.link(above, len(self.rank) - 1)
        return len(self.rank) - 1

    def link(self, above: int, below: int) -> None:
        self.below[above].append(below)
        self.above[below].append(above)


def lay_out(boxes: Sequence[Box], wires: Sequence[Wire]) -> Layout:
    """Return where boxes are and wires bend; the same for the same arguments.

    Args:
        boxes: in an order in which every wire goes from an earlier to a later one.
        wires: the connections.

    Raises:
        NetworkError: ``E_RESOURCE``: more than ``MOST_PLACES`` boxes and bends.
    """
    ranks = _ranks(boxes, wires)
    places = _places(boxes, wires, ranks)
    rows = _ordered(places)
    position = {place: index for row in rows for index, place in enumerate(row)}
    x = _positions(places, rows, boxes)
    tops, bottoms = _row_extents(places, rows, boxes, x)
    left = min((x[place] - _width(boxes, place) // 2 for place in range(len(x))), default=0)
    x = [each - left for each in x]
    placed = []
    for centre, box, rank in zip(x, boxes, ranks, strict=False):
        top = (tops[rank] + bottoms[rank] - box.height) // 2
        placed.append(PlacedBox(centre, top, top + box.height, tops[rank], bottoms[rank]))
    bends = [[(x[p], tops[places.rank[p]], bottoms[places.rank[p]]) for p in passes] for passes in places.passes]
    width = max((x[place] + _width(boxes, place) - _width(boxes, place) // 2 for place in range(len(x))), default=0)
    inlets, outlets = _port_orders(boxes, wires, places, position)
    return Layout(placed, bends, inlets, outlets, width, bottoms[-1] if bottoms else 0)


def _ranks(boxes: Sequence[Box], wires: Sequence[Wire]) -> list[int]:
    arriving: list[list[int]] = [[] for _ in boxes]
    for wire in wires:
        arriving[wire.target].append(wire.source)
    ranks: list[int] = []
    for sources in arriving:
        ranks.append(max((ranks[source] + 1 for source in sources), default=0))
    last = max(ranks, default=0)
    return [last if box.is_last else rank for box, rank in zip(boxes, ranks, strict=True)]


def _places(boxes: Sequence[Box], wires: Sequence[Wire], ranks: list[int]) -> _Places:
    """Wires of one outlet go one way until they part."""
    furthest: dict[tuple[int, int], int] = {}
    for wire in wires:
        key = (wire.source, wire.outlet)
        furthest[key] = max(furthest.get(key, 0), ranks[wire.target])
    count = len(boxes) + sum(rank - ranks[source] - 1 for (source, _), rank in furthest.items())
    if count > MOST_PLACES:
        raise NetworkError("E_RESOURCE", f"a drawing has at most {MOST_PLACES:,} boxes and bends, this one {count:,}")
    places = _Places([*ranks], [[] for _ in boxes], [[] for _ in boxes], len(boxes))
    trunks: dict[tuple[int, int], list[int]] = {}
    for wire in wires:
        trunk = trunks.setdefault((wire.source, wire.outlet), [])
        length = ranks[wire.target] - ranks[wire.source] - 1
        while len(trunk) < length:
            trunk.append(places.add_bend(ranks[wire.source] + len(trunk) + 1, trunk[-1] if trunk else wire.source))
        places.link(trunk[length - 1] if length else wire.source, wire.target)
        places.passes.append(trunk[:length])
    return places


def _ordered(places: _Places) -> list[list[int]]:
    """Return the rows in the order with the fewest crossings that was met."""
    rows: list[list[int]] = [[] for _ in range(max(places.rank, default=-1) + 1)]
    for place, rank in enumerate(places.rank):
        rows[rank].append(place)
    best, fewest = [*rows], _crossings(places, rows)
    for sweep in range(_ORDERINGS):
        if not fewest:
            break
        downward = sweep % 2 == 0
        neighbours = places.above if downward else places.below
        position = {place: float(index) for row in rows for index, place in enumerate(row)}
        for rank in range(1, len(rows)) if downward else range(len(rows) - 2, -1, -1):
            centre = {
                place: _mean(position[each] for each in neighbours[place]) if neighbours[place] else position[place]
                for place in rows[rank]
            }
            rows[rank] = sorted(rows[rank], key=lambda place: (centre[place], position[place]))
            position.update((place, float(index)) for index, place in enumerate(rows[rank]))
        crossings = _crossings(places, rows)
        if crossings < fewest:
            best, fewest = [*rows], crossings
    return best


def _crossings(places: _Places, rows: list[list[int]]) -> int:
    """Count pairs of links that cross, row by row: inversions, by a Fenwick tree over the lower row."""
    total = 0
    for upper, lower in pairwise(rows):
        position = {place: index for index, place in enumerate(lower)}
        tree = [0] * (len(lower) + 1)
        count = 0
        for place in upper:
            ends = sorted(position[below] for below in places.below[place])
            for end in ends:
                index, before = end + 1, 0
                while index:
                    before += tree[index]
                    index &= index - 1
                total += count - before
            for end in ends:
                index = end + 1
                while index < len(tree):
                    tree[index] += 1
                    index += index & -index
            count += len(ends)
    return total


def _positions(places: _Places, rows: list[list[int]], boxes: Sequence[Box]) -> list[int]:
    x = [0.0] * len(places.rank)
    for row in rows:
        _settle(row, boxes, places, x)
    for sweep in range(_ALIGNMENTS + 2):  # the last two only straighten bends
        downward = sweep % 2 == 1
        for row in rows if downward else reversed(rows):
            for place in row if sweep < _ALIGNMENTS else [each for each in row if each >= places.boxes]:
                x[place] = _mean(x[each] for each in _guides(places, place, downward) or [place])
            _settle(row, boxes, places, x)
    return [round(each) for each in x]


def _guides(places: _Places, place: int, downward: bool) -> list[int]:
    """The neighbours to be in line with: boxes with boxes, bends with bends, else any; none where others follow it."""
    before, behind = (places.above, places.below) if downward else (places.below, places.above)

    def alike(neighbours: list[int]) -> list[int]:
        return [each for each in neighbours if (each < places.boxes) == (place < places.boxes)]

    return alike(before[place]) or ([] if alike(behind[place]) else before[place])


def _settle(row: list[int], boxes: Sequence[Box], places: _Places, x: list[float]) -> None:
    """Move the places of a row apart, in their order, as little as possible in weighted least squares.

    Without the least distances between neighbours the positions have to be in order: pool adjacent violators (Ayer and
    others, 1955).
    """
    offsets: list[float] = []
    for index, place in enumerate(row):
        before = row[index - 1] if index else place
        offsets.append(offsets[-1] + _distance(boxes, before, place) if index else 0.0)
    pools: list[tuple[float, float, int]] = []
    for place, offset in zip(row, offsets, strict=True):
        is_free = place >= places.boxes
        mean, weight, count = x[place] - offset, _BEND_WEIGHT if is_free else _BOX_WEIGHT, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_count = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    for place, mean, offset in zip(row, means, offsets, strict=True):
        x[place] = mean + offset


def _distance(boxes: Sequence[Box], left: int, right: int) -> float:
    both = left < len(boxes) and right < len(boxes)
    return (_width(boxes, left) + _width(boxes, right)) / 2 + (BOX_GAP if both else BEND_GAP) + 1  # 1: for rounding


def _width(boxes: Sequence[Box], place: int) -> int:
    return boxes[place].width if place < len(boxes) else 0


def _row_extents(
    places: _Places, rows: list[list[int]], boxes: Sequence[Box], x: list[int]
) -> tuple[list[int], list[int]]:
    """Return top and bottom of each row; wires that go far to the side have more room above them."""
    tops: list[int] = []
    bottoms: list[int] = []
    for row in rows:
        aside = max((abs(x[place] - x[above]) for place in row for above in places.above[place]), default=0)
        gap = ROW_GAP + min(aside // 8, _MOST_EXTRA_GAP)
        tops.append(bottoms[-1] + gap if bottoms else 0)
        bottoms.append(tops[-1] + max((boxes[place].height for place in row if place < len(boxes)), default=0))
    return tops, bottoms


def _port_orders(
    boxes: Sequence[Box], wires: Sequence[Wire], places: _Places, position: dict[int, int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return how wires arrive and leave such that none crosses another at its box."""
    inlets: list[list[int]] = [[] for _ in boxes]
    leaving: list[dict[int, list[int]]] = [{} for _ in boxes]
    for index, (wire, passes) in enumerate(zip(wires, places.passes, strict=True)):
        inlets[wire.target].append(index)
        leaving[wire.source].setdefault(wire.outlet, []).append(position[passes[0] if passes else wire.target])

    def arrival(index: int) -> tuple[int, int]:
        passes = places.passes[index]
        return position[passes[-1] if passes else wires[index].source], wires[index].outlet

    outlets = [sorted(each, key=lambda outlet: (_mean(each[outlet]), outlet)) for each in leaving]
    return [sorted(each, key=arrival) for each in inlets], outlets


def _mean(values: Iterable[float]) -> float:
    listed = [*values]
    return sum(listed) / len(listed)
