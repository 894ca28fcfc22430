"""A network as a picture: SVG text that needs nothing else, in light and dark.

Inputs are at the top, outputs at the bottom; every box says what it computes, the shape that leaves it, and how many
parameters it has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from mila.network_language.layering import Box, Layout, Wire, lay_out
from mila.network_language.resolved import ExternalTensor, ResolvedNetwork, ResolvedNode
from mila.network_language.shapes import NetworkShape, shape_text
from mila.network_language.wording import value_text

_LINE, _CELL, _SMALL_CELL = 16, 7.25, 6.05  # of 12 and 10 pixels
_PADDING, _MARGIN = 12, 20
_WIDE_LINE, _LONGEST_LINE, _MOST_LINES = 30, 44, 3
_PORT_GAP, _PORT_LINE = 16, 14
_CAPTION = 26
_CATEGORIES = ("core", "sequence", "activation", "normalization", "regularization", "arithmetic", "shape")
_STYLE = """\
text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; }
.name { font-weight: bold; }
.id, .count, .caption { fill: #59636e; }
.port { font-size: 10px; fill: #59636e; stroke: #ffffff; stroke-width: 3px; paint-order: stroke; }
.page { fill: #ffffff; }
.box { fill: #f6f8fa; stroke: #8c959f; }
.input .box, .output .box { fill: #ddf4ff; stroke: #54aeff; }
.edge { fill: none; stroke: #6e7781; stroke-width: 1.25; }
.head { fill: #6e7781; }
.core { fill: #0969da; }
.sequence { fill: #8250df; }
.activation { fill: #1a7f37; }
.normalization { fill: #bc4c00; }
.regularization { fill: #bf3989; }
.arithmetic { fill: #9a6700; }
.shape { fill: #57606a; }
.other { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .id, .count, .caption { fill: #9198a1; }
  .port { fill: #9198a1; stroke: #0d1117; }
  .page { fill: #0d1117; }
  .box { fill: #161b22; stroke: #57606a; }
  .input .box, .output .box { fill: #0c2d4d; stroke: #388bfd; }
  .edge { stroke: #848d97; }
  .head { fill: #848d97; }
  .core { fill: #4493f8; }
  .sequence { fill: #ab7df8; }
  .activation { fill: #3fb950; }
  .normalization { fill: #db6d28; }
  .regularization { fill: #db61a2; }
  .arithmetic { fill: #d29922; }
}"""


@dataclass(frozen=True)
class _Shown:
    """What a box shows.

    Attributes:
        id: of its element.
        kind: ``node``, ``input`` or ``output``.
        lines: its text: pieces with a style each.
        title: all that there is to say; shown by viewers where the pointer rests.
        category: of the operator, for the colour.
        inlets: names of the inputs, in order.
        outlets: names of the outputs, in order.
    """

    id: str
    kind: str
    lines: list[list[tuple[str, str]]]
    title: str
    category: str = ""
    inlets: Sequence[str] = ()
    outlets: Sequence[str] = ("out",)

    @property
    def inlet_labels(self) -> Sequence[str]:
        """What is written at the inputs: nothing where there is one."""
        return self.inlets if len(self.inlets) > 1 else ("",) * len(self.inlets)

    @property
    def outlet_labels(self) -> Sequence[str]:
        """What is written at the outputs: nothing where there is one."""
        return self.outlets if len(self.outlets) > 1 else ("",) * len(self.outlets)

    @property
    def head(self) -> int:
        """The room above it for the names of its inputs."""
        return _PORT_LINE if len(self.inlets) > 1 else 0

    @property
    def foot(self) -> int:
        """The room below it for the names of its outputs."""
        return _PORT_LINE if len(self.outlets) > 1 else 0

    @property
    def height(self) -> int:
        """What its text takes."""
        return _LINE * len(self.lines) + _PADDING

    def box(self) -> Box:
        """Its size with the names of its ports, and with room for these beside each other."""
        text = max(sum(_cells(piece) for _, piece in line) for line in self.lines) * _CELL + 2 * _PADDING
        ports = max(_port_room(self.inlet_labels), _port_room(self.outlet_labels))
        height = self.head + self.height + self.foot
        return Box(2 * round(max(text, ports) / 2 + 0.5), height, is_last=self.kind == "output")


def draw(network: ResolvedNetwork) -> str:
    """Return the drawing of a network as SVG; the same text for the same network.

    Raises:
        NetworkError: ``E_RESOURCE``: it is too large to be drawn.
    """
    counts = network.parameter_counts()
    shown = [
        *(_shown_external(tensor, "input") for tensor in network.inputs),
        *(_shown_node(node, counts[node.id]) for node in network.nodes),
        *(_shown_external(tensor, "output") for tensor in network.outputs),
    ]
    wires, refs = _wires(network)
    layout = lay_out([each.box() for each in shown], wires)
    caption = f"{network.parameters_line}, {network.dtype}"
    width = max(layout.width, round(_cells(caption) * _CELL)) + 2 * _MARGIN
    height = layout.height + 2 * _MARGIN + _CAPTION
    left = (width - layout.width) // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label={quoteattr(_summary(network))}>',
        f"<title>{escape(_summary(network))}</title>",
        f"<style>\n{_STYLE}\n</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="90">'
        '<path class="head" d="M0 0.5 L8 4 L0 7.5 z"/></marker></defs>',
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="caption" x="{_MARGIN}" y="{_MARGIN + 4}">{escape(caption)}</text>',
        f'<g transform="translate({left} {_MARGIN + _CAPTION})">',
        *_edges(shown, wires, refs, layout),
        *(_box(each, layout, index) for index, each in enumerate(shown)),
        *_labels(shown, wires, layout),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(network: ResolvedNetwork) -> str:
    return str(network).split("\n", 1)[0]


def _shown_external(tensor: ExternalTensor, kind: str) -> _Shown:
    lines = [[("name", tensor.name)], [("", f"{shape_text(tensor.shape)} {tensor.dtype}")]]
    title = f"{kind} {tensor.name}: {shape_text(tensor.shape)} {tensor.dtype}"
    if kind == "input":
        return _Shown(f"input-{tensor.name}", kind, lines, title)
    return _Shown(f"output-{tensor.name}", kind, lines, title, inlets=("x",), outlets=())


def _shown_node(node: ResolvedNode, count: int) -> _Shown:
    lines = [[("id", f"{node.id} "), ("name", node.operator.alias)]]
    lines += [[("", _shortened(line))] for line in _argument_lines(node)]
    lines.append([("", _shortened(_shapes_text(node.output_shapes)))])
    if count:
        frozen = not any(node.settings.is_trainable(name) for name in node.parameter_shapes())
        lines.append([("count", f"{count:,} parameter{'s' if count > 1 else ''}{', frozen' if frozen else ''}")])
    arguments = ", ".join(f"{name}={value_text(value)}" for name, value in node.arguments.items())
    inputs = ", ".join(f"{port}={shape_text(shape)}" for port, shape in node.input_shapes.items())
    title = (
        f"{node.id}: {node.operator.alias}({arguments})\n{inputs} -> {_shapes_text(node.output_shapes, in_full=True)}"
    )
    ports = (tuple(node.inputs), tuple(node.output_shapes))
    return _Shown(f"node-{node.id}", "node", lines, title, node.operator.category, *ports)


def _argument_lines(node: ResolvedNode) -> list[str]:
    """The arguments that neither the shapes nor the defaults say."""
    operator = node.operator
    said = [
        f"{argument.name}={value_text(node.arguments[argument.name])}"
        for argument in operator.arguments
        if argument.dimension is None
        and argument.name not in (operator.count, operator.stores_shape)
        and node.arguments[argument.name] != argument.default
    ]
    lines: list[str] = []
    for text in said:
        if lines and len(lines[-1]) + len(text) + 2 <= _WIDE_LINE:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "…"]


def _shapes_text(shapes: Mapping[str, NetworkShape], *, in_full: bool = False) -> str:
    texts = [shape_text(shape) for shape in shapes.values()]
    if len(texts) == 1:
        return texts[0]
    if len({*texts}) == 1 and not in_full:
        return f"{len(texts)} of {texts[0]}"
    return ", ".join(f"{port}={text}" for port, text in zip(shapes, texts, strict=True))


def _wires(network: ResolvedNetwork) -> tuple[list[Wire], list[tuple[str, str]]]:
    """Return the connections, and for each where it comes from and which input it goes to."""
    outlets = {tensor.ref: (index, 0) for index, tensor in enumerate(network.inputs)}
    wires: list[Wire] = []
    refs: list[tuple[str, str]] = []
    for index, node in enumerate(network.nodes, start=len(network.inputs)):
        for inlet, (port, ref) in enumerate(node.inputs.items()):
            wires.append(Wire(*outlets[ref], index, inlet))
            refs.append((ref, f"node:{node.id}/{port}"))
        for outlet, port in enumerate(node.output_shapes):
            outlets[f"node:{node.id}/{port}"] = (index, outlet)
    for index, tensor in enumerate(network.outputs, start=len(network.inputs) + len(network.nodes)):
        wires.append(Wire(*outlets[tensor.ref], index, 0))
        refs.append((tensor.ref, f"output:{tensor.name}"))
    return wires, refs


def _edges(
    shown: Sequence[_Shown], wires: Sequence[Wire], refs: Sequence[tuple[str, str]], layout: Layout
) -> Iterable[str]:
    inlets, outlets = _port_places(shown, layout)
    for index, (wire, (source, target)) in enumerate(zip(wires, refs, strict=True)):
        start, end = layout.boxes[wire.source], layout.boxes[wire.target]
        x = outlets[wire.source][wire.outlet]
        path = [f"M{x} {start.bottom - shown[wire.source].foot}"]
        bottom = start.row_bottom
        for next_x, top, next_bottom in [
            *layout.bends[index],
            (inlets[index], end.row_top, end.top + shown[wire.target].head),
        ]:
            middle = (bottom + top) // 2
            path.append(f"V{bottom}")
            path.append(f"V{top}" if next_x == x else f"C{x} {middle} {next_x} {middle} {next_x} {top}")
            x, bottom = next_x, next_bottom
        path.append(f"V{bottom}")
        ends = f"data-from={quoteattr(source)} data-to={quoteattr(target)}"
        yield f'<path class="edge" {ends} d="{" ".join(path)}" marker-end="url(#head)"/>'


def _port_places(shown: Sequence[_Shown], layout: Layout) -> tuple[dict[int, int], list[dict[int, int]]]:
    """Return where each wire arrives, and where each outlet of each box is."""
    inlets: dict[int, int] = {}
    outlets: list[dict[int, int]] = []
    for index, (each, placed) in enumerate(zip(shown, layout.boxes, strict=True)):
        arriving, leaving = layout.inlet_order[index], layout.outlet_order[index]
        inlets.update(zip(arriving, _spread(placed.x, len(arriving), each.inlet_labels), strict=True))
        outlets.append(dict(zip(leaving, _spread(placed.x, len(leaving), each.outlet_labels), strict=True)))
    return inlets, outlets


def _spread(centre: int, count: int, labels: Sequence[str]) -> list[int]:
    step = _port_step(labels)
    return [round(centre + (index - (count - 1) / 2) * step) for index in range(count)]


def _port_step(labels: Sequence[str]) -> float:
    return _PORT_GAP + max((_cells(label) for label in labels), default=0) * _SMALL_CELL


def _port_room(labels: Sequence[str]) -> float:
    return (len(labels) + 1) * _port_step(labels) if len(labels) > 1 else 0


def _box(shown: _Shown, layout: Layout, index: int) -> str:
    placed, width = layout.boxes[index], shown.box().width
    left, top = placed.x - width // 2, placed.top + shown.head
    radius = 4 if shown.kind == "node" else shown.height // 2
    size = f'x="{left}" y="{top}" width="{width}" height="{shown.height}"'
    parts = [
        f'<g class="{shown.kind}" id={quoteattr(shown.id)}><title>{escape(shown.title)}</title>',
        f'<rect class="box" {size} rx="{radius}"/>',
    ]
    if shown.kind == "node":
        category = shown.category if shown.category in _CATEGORIES else "other"
        parts.append(f'<rect class="{category}" x="{left}" y="{top}" width="4" height="{shown.height}" rx="2"/>')
    for number, line in enumerate(shown.lines):
        pieces = "".join(f'<tspan class="{style}">{escape(text)}</tspan>' for style, text in line)
        y = top + _LINE * (number + 1) + 1
        parts.append(f'<text x="{placed.x}" y="{y}" text-anchor="middle">{pieces}</text>')
    return "".join([*parts, "</g>"])


def _labels(shown: Sequence[_Shown], wires: Sequence[Wire], layout: Layout) -> Iterable[str]:
    """Names of ports beside the ends of wires, over everything else."""
    inlets, outlets = _port_places(shown, layout)
    for index, wire in enumerate(wires):
        label = shown[wire.target].inlet_labels[wire.inlet]
        if label:
            yield _label(inlets[index] + 5, layout.boxes[wire.target].top + _PORT_LINE - 4, label)
    for each, placed, places in zip(shown, layout.boxes, outlets, strict=True):
        for outlet, x in places.items():
            label = each.outlet_labels[outlet]
            if label:
                yield _label(x + 5, placed.bottom - _PORT_LINE + 11, label)


def _label(x: int, y: int, text: str) -> str:
    return f'<text class="port" x="{x}" y="{y}">{escape(text)}</text>'


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "FW" else 1 for character in text)
