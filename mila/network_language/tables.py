"""The printed tables: columns as wide as their longest cell, two spaces between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mila.network_language.shapes import NetworkShape, shape_text

if TYPE_CHECKING:
    from mila.network_language.resolved import ExternalTensor, ResolvedNetwork


def plan_table(network: ResolvedNetwork) -> str:
    """Return the table of a resolved network: every node with the shapes at its ports."""
    rows = [("index", "name", "operation", "input shapes", "output shapes")]
    for index, node in enumerate(network.nodes):
        cells = (_ports(node.input_shapes), _ports(node.output_shapes))
        rows.append((str(index), node.id, node.operator.alias, *cells))
    return "\n".join([_header(network), *_lines(rows)])


def network_table(network: ResolvedNetwork) -> str:
    """Return the table of a network; unless it is a chain, with the source of every input."""
    if _is_chain(network):
        rows = [("index", "name", "operation", "input shape", "output shape")]
        for index, node in enumerate(network.nodes):
            shapes = (*node.input_shapes.values(), *node.output_shapes.values())
            rows.append((str(index), node.id, node.operator.alias, shape_text(shapes[0]), shape_text(shapes[1])))
        return "\n".join([_header(network), *_lines(rows)])
    wide = [("name", "operation", "input shapes", "output shapes")]
    for node in network.nodes:
        inputs = ", ".join(
            f"{port}={node.inputs[port]}:{shape_text(shape)}" for port, shape in node.input_shapes.items()
        )
        wide.append((node.id, node.operator.alias, inputs, _ports(node.output_shapes)))
    return "\n".join([_header(network), *_lines(wide)])


def signature(network: ResolvedNetwork) -> str:
    """Return what goes in and what comes out: ``[B, 6] -> [B, 8]``."""
    return f"{_externals(network.inputs, 'x')} -> {_externals(network.outputs, 'output')}"


def _header(network: ResolvedNetwork) -> str:
    header = f"Network: {signature(network)}  dtype={network.dtype}"
    others = [tensor for tensor in network.inputs if tensor.dtype != network.dtype]
    if not others:
        return header
    if len(network.inputs) == 1 and others[0].name == "x":
        return f"{header}  input_dtype={others[0].dtype}"
    return f"{header}  input_dtype={', '.join(f'{tensor.name}={tensor.dtype}' for tensor in others)}"


def _externals(tensors: Sequence[ExternalTensor], default: str) -> str:
    if len(tensors) == 1 and tensors[0].name == default:
        return shape_text(tensors[0].shape)
    return ", ".join(f"{tensor.name}={shape_text(tensor.shape)}" for tensor in tensors)


def _ports(shapes: Mapping[str, NetworkShape]) -> str:
    return ", ".join(f"{port}={shape_text(shape)}" for port, shape in shapes.items())


def _is_chain(network: ResolvedNetwork) -> bool:
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        return False
    ref = network.inputs[0].ref
    for node in network.nodes:
        if tuple(node.inputs.values()) != (ref,) or len(node.output_shapes) != 1:
            return False
        ref = f"node:{node.id}/{next(iter(node.output_shapes))}"
    return network.outputs[0].ref == ref


def _lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
