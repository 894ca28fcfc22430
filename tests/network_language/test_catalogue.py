"""The page of the operators: it is up to date, complete, and what it prints is what the networks print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mila
from mila.network_language import BUILT_IN, Argument, Example, NodeShapes, Operator
from mila.network_language.catalogue import COMMAND, PAGE, call_form, catalogue, operator_section, resolve_example
from mila.network_language.resolved import ResolvedNode
from tests.network_language.test_contract_text import contracts_of

ROOT = Path(__file__).resolve().parent.parent.parent
OPERATORS = BUILT_IN.operators
BLOCK = re.compile(r"```py\n(.*?)\n```\n\n```text\n(.*?)\n```", re.DOTALL)
EXAMPLES = [(operator, example) for operator in OPERATORS for example in operator.examples]


def node_of(operator: Operator, example: Example) -> ResolvedNode:
    return next(node for node in resolve_example(example).nodes if node.operator is operator)


def test_the_page_is_up_to_date() -> None:
    same = (ROOT / PAGE).read_text("utf-8") == catalogue()
    assert same, f"{PAGE} is not what the declarations say; write it again: {COMMAND}"


def test_the_examples_on_the_page_print_what_stands_below_them() -> None:
    blocks = BLOCK.findall((ROOT / PAGE).read_text("utf-8"))
    assert len(blocks) == sum(len(operator.examples) for operator in OPERATORS)
    for source, printed in blocks:
        network = mila.resolve(source, **contracts_of(source))
        assert f"{network}\n\n{network.parameters_line}" == printed


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.alias)
def test_a_section_has_all_of_the_declaration(operator: Operator) -> None:
    section = operator_section(operator)
    lines = section.splitlines()
    for text in (operator.summary, operator.documentation, call_form(operator)):
        assert text in lines
    assert operator.identity in section and f"Category {operator.category}" in section
    for port in (*operator.ports.inputs, *operator.ports.outputs):
        row = next(line for line in lines if line.startswith(f"| `{port.name}{'0' if port.variadic else ''}`"))
        assert port.shape_text() in row
    for argument in operator.arguments:
        row = next(line for line in lines if line.startswith(f"| `{argument.name}` | ") and argument.help in line)
        assert ("required" in row, "inferred" in row) == (argument.required, argument.inferable)
        assert ("position or name" in row) == argument.positional
        assert all(f'`"{choice}"`' in row for choice in argument.choices)
    assert all(example.note in lines for example in operator.examples if example.note)


def test_the_contents_lead_to_every_operator() -> None:
    page = catalogue()
    assert re.findall(r"\[(\w+)\]\(#\1\)", page) == re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert {*re.findall(r"^### (\w+)$", page, re.MULTILINE)} == {*BUILT_IN}


@pytest.mark.parametrize(
    ("alias", "form"),
    [
        ("linear", "out = linear(x, out_features=…, *, in_features=…, bias=True, spectral_norm=False)"),
        ("gather_token", 'out = gather_token(x, ids, *, mode="argmax")'),
        ("embedding", "out = embedding(ids, num_embeddings, dim=…)"),
        ("split", "first, rest = split(x, size=…, *, dim=1)"),
        ("chunk", "out0, out1, … = chunk(x, chunks, *, dim=1)"),
        ("relu", "out = relu(x)"),
    ],
)
def test_a_call_is_shown_in_full(alias: str, form: str) -> None:
    assert call_form(BUILT_IN[alias]) == form


def test_numbered_parameters_have_one_row() -> None:
    section = operator_section(BUILT_IN["moe"])
    assert section.count("| `experts.<i>.up.weight` | `[32, 16]` |") == 1
    assert "experts.0" not in section


def halves(name: str, node: NodeShapes) -> mila.Component:  # type: ignore[type-arg]
    from mila.components import Linear, LinearConfig

    return Linear(name, LinearConfig(in_features=node.width, out_features=node.width // 2))


def test_an_operator_of_a_user_has_a_section_too() -> None:
    halve = Operator(
        alias="halve",
        identity="halve@1",
        category="mine | yours",
        summary="Half of the features.",
        documentation="They are learned.",
        pattern="x[B, ..., 2*D] -> out[B, ..., D]",
        component=halves,
        arguments=(Argument(name="how", type="str", help="a | b", default='"'),),
        examples=(Example(source="halve()", input_shape=("B", 8), output_shape=("B", 4)),),
    )
    page = catalogue(BUILT_IN.extended(halve))
    section = operator_section(halve, BUILT_IN.extended(halve))
    assert section in page and "[halve](#halve)" in page
    assert '| `how` | str | `"\\""` | position or name | | a \\| b |' in section
    assert "| `weight` | `[4, 8]` |" in section


def test_sizes_that_are_no_products_come_from_the_example() -> None:
    def wider(name: str, node: NodeShapes) -> mila.Component:  # type: ignore[type-arg]
        from mila.components import Linear, LinearConfig

        return Linear(name, LinearConfig(in_features=node.width, out_features=node.width + 1, bias=False))

    more = Operator(
        alias="wider",
        identity="wider@1",
        category="shape",
        summary="One more feature.",
        documentation="It is learned.",
        pattern="x[B, D] -> out[B, E]",
        component=wider,
        examples=(Example(source="wider()", input_shape=("B", 8), output_shape=("B", 9)),),
    )
    assert "| `weight` | `[9, 8]` |" in operator_section(more, BUILT_IN.extended(more))
