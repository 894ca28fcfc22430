"""The page of all operators, generated from their declarations.

``python -m mila.network_language.catalogue`` writes ``specs/operators.md``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mila.network_language.arguments import Argument
from mila.network_language.contract_text import comment_lines
from mila.network_language.operator import Example, Operator
from mila.network_language.operators import BUILT_IN
from mila.network_language.patterns import PortPattern
from mila.network_language.registry import Registry
from mila.network_language.resolved import ResolvedNetwork, ResolvedNode
from mila.network_language.resolving import resolve
from mila.network_language.shapes import shape_text
from mila.network_language.wording import value_text

PAGE = Path("specs") / "operators.md"
#: A number in the name of a parameter.
_NUMBER = re.compile(r"\.[0-9]+\.")
COMMAND = "python -m mila.network_language.catalogue"

_HEAD = f"""\
# Operators of the network definition language

Written by `{COMMAND}` from the declarations in `mila/network_language/operators/`; change those.
The language itself is described in [network_language.md](network_language.md).

**Shapes.** `B` is the batch. A letter is one size within a call, `...` any axes, `2*D` a multiple. A port without a
shape takes any; its description says how the shapes follow from each other. Tensors come first in a call; an operator
with one input may leave it out and then reads the current tensor.

**Dtypes.** "The network's" is the `dtype` of the network. Nothing converts.

**Arguments.** A required argument has to be given. One that is inferred may be left out where the shapes decide it.
`= D` says that it is the size of the axis `D`. Integers are given one by one or as a list: `reshape(2, 2)`,
`reshape([2, 2])`, `reshape(shape=[2, 2])`. Every call also takes `name=`, `init=` and `trainable=`.

**Parameters** are named `<node>.<name>`: the weight of node `n0` is `n0.weight`.

**Examples** are complete: the comments are their contracts. Save one in a file, and `mila network FILE` prints the
table below it, plans its memory, and draws it with `--svg`."""


def catalogue(registry: Registry = BUILT_IN) -> str:
    """Return the page: contents by category, then every operator."""
    categories: dict[str, list[Operator]] = {}
    for operator in registry.operators:
        categories.setdefault(operator.category, []).append(operator)
    parts = [_HEAD, "## Contents", "\n".join(_contents(categories.items()))]
    for category, operators in categories.items():
        parts.append(f"## {category.capitalize()}")
        parts += [operator_section(operator, registry) for operator in operators]
    return "\n\n".join(parts) + "\n"


def operator_section(operator: Operator, registry: Registry = BUILT_IN) -> str:
    """Return the part of the page about one operator; its examples are resolved with ``registry``."""
    networks = [resolve_example(example, registry) for example in operator.examples]
    parts = [
        f"### {operator.alias}",
        operator.summary,
        f"```text\n{call_form(operator)}\n```",
        f"Category {operator.category}, identity `{operator.identity}`.",
        operator.documentation,
        _table(("port", "", "shape", "dtype"), _port_rows(operator)),
    ]
    if operator.arguments:
        header = ("argument", "type", "default", "given by", "constraints", "meaning")
        parts.append(_table(header, map(_argument_row, operator.arguments)))
    parts.append(_parameters(operator, (node for network in networks for node in network.nodes)))
    for example, network in zip(operator.examples, networks, strict=True):
        parts += [example.note] if example.note else []
        parts += [f"```py\n{example_source(example)}\n```", f"```text\n{example_output(network)}\n```"]
    return "\n\n".join(parts)


def resolve_example(example: Example, registry: Registry = BUILT_IN) -> ResolvedNetwork:
    """Return the network of an example.

    Raises:
        NetworkError: the example is wrong.
    """
    return resolve(
        example.source,
        input_shape=example.input_shape,
        output_shape=example.output_shape,
        input_dtype=example.input_dtype,
        registry=registry,
    )


def example_source(example: Example) -> str:
    """Return an example as a file: its contracts as comments, and its definition."""
    lines = comment_lines(example.input_shape, example.output_shape, input_dtype=example.input_dtype)
    return "\n".join([*lines, example.source.strip("\n")])


def example_output(network: ResolvedNetwork) -> str:
    """Return what is printed for a network: its table, and below it the number of its parameters."""
    return f"{network}\n\n{network.parameters_line}"


def call_form(operator: Operator) -> str:
    """Return a call with every port and argument, such as ``out = linear(x, out_features=…, *, bias=True)``."""
    inputs = [name for port in operator.ports.inputs for name in _port_names(port)]
    outputs = [name for port in operator.ports.outputs for name in _port_names(port)]
    positional = [_argument_form(argument) for argument in operator.arguments if argument.positional]
    by_name = [_argument_form(argument) for argument in operator.arguments if not argument.positional]
    items = [*inputs, *positional, *(["*", *by_name] if by_name else [])]
    return f"{', '.join(outputs)} = {operator.alias}({', '.join(items)})"


def _contents(categories: Iterable[tuple[str, Sequence[Operator]]]) -> Iterable[str]:
    for category, operators in categories:
        links = ", ".join(f"[{operator.alias}](#{operator.alias})" for operator in operators)
        yield f"- **{category.capitalize()}**: {links}"


def _port_names(port: PortPattern) -> list[str]:
    return [f"{port.name}0", f"{port.name}1", "…"] if port.variadic else [port.name]


def _argument_form(argument: Argument) -> str:
    if argument.default is not None:
        return f"{argument.name}={value_text(argument.default)}"
    return f"{argument.name}=…" if argument.inferable else argument.name


def _port_rows(operator: Operator) -> Iterable[tuple[str, ...]]:
    for direction, ports in (("in", operator.ports.inputs), ("out", operator.ports.outputs)):
        for port in ports:
            names = ", ".join(name if name == "…" else f"`{name}`" for name in _port_names(port))
            shape = f"`{port.shape_text()}`" if port.axes is not None else "any"
            yield names, direction, shape, {"compute": "the network's"}.get(port.dtype, port.dtype)


def _argument_row(argument: Argument) -> tuple[str, ...]:
    default = f"`{value_text(argument.default)}`" if argument.default is not None else "required"
    constraints = [f"= `{argument.dimension}`"] if argument.dimension is not None else []
    if argument.type == "ints":
        constraints.append(f"up to {argument.most} values")
    if argument.choices:
        constraints += [f"`{value_text(choice)}`" for choice in argument.choices]
    elif argument.constraints():
        constraints.append(f"{'each ' if argument.type == 'ints' else ''}{argument.constraints()}")
    return (
        f"`{argument.name}`",
        {"ints": "integers"}.get(argument.type, argument.type),
        "inferred" if argument.inferable else default,
        "position or name" if argument.positional else "name",
        ", ".join(constraints),
        argument.help,
    )


def _parameters(operator: Operator, nodes: Iterable[ResolvedNode]) -> str:
    """The parameters that the node of the first example has; of numbered ones, the first."""
    rows: dict[str, str] = {}
    for name, shape in next(node for node in nodes if node.operator is operator).parameter_shapes().items():
        rows.setdefault(_NUMBER.sub(".<i>.", name), shape_text(shape))
    if not rows:
        return "No parameters."
    cells = ((f"`{name}`", f"`{shape}`") for name, shape in rows.items())
    return _table(("parameter", "shape in the first example"), cells)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the page of all operators.")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE, help=f"where to; by default {PAGE}")
    page: Path = parser.parse_args().page
    page.write_text(catalogue(), "utf-8")
    print(f"{page}: {len(BUILT_IN)} operators")


if __name__ == "__main__":
    main()
