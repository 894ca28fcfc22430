"""What ``mila network`` reads and says: a definition with its contracts, a faulty line, documents for machines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from mila.cli.display import without_controls
from mila.errors import ConfigurationError, DataError, NetworkError
from mila.network_language import BUILT_IN, Argument, Operator, ResolvedNetwork, resolve
from mila.network_language.capture import Capture
from mila.network_language.catalogue import call_form
from mila.network_language.contract_text import ContractKey, contract_comments, near_miss, read_input_dtype, read_shapes
from mila.network_language.contracts import contract_names
from mila.network_language.limits import LARGEST_SOURCE_BYTES
from mila.network_language.resolved import ExternalTensor, ResolvedNode
from mila.network_language.resolving import ShapeContract
from mila.network_language.source import Place, parse

STANDARD_INPUT = "-"
_WIDEST_EXCERPT = 100


@dataclass(frozen=True)
class Definition:
    """A definition and where it is from.

    Attributes:
        name: of the file, for messages.
        source: its text.
    """

    name: str
    source: str

    @classmethod
    def empty(cls, file: Path) -> Definition:
        """Return one without text, with the name that messages have for a file."""
        return cls("standard input" if str(file) == STANDARD_INPUT else str(file), "")

    @classmethod
    def read(cls, file: Path) -> Definition:
        """Read a file, or standard input for ``-``.

        Raises:
            DataError: it is not UTF-8.
            NetworkError: ``E_RESOURCE``: it is longer than a definition may be.
        """
        name = cls.empty(file).name
        if str(file) == STANDARD_INPUT:
            data = sys.stdin.buffer.read(LARGEST_SOURCE_BYTES + 1)
        else:
            with file.open("rb") as stream:
                data = stream.read(LARGEST_SOURCE_BYTES + 1)
        if len(data) > LARGEST_SOURCE_BYTES:
            raise NetworkError("E_RESOURCE", f"a definition has at most {LARGEST_SOURCE_BYTES:,} bytes, this is longer")
        try:
            return cls(name, data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            found = error.object[error.start]
            raise DataError(f"{name}: expected UTF-8, got byte 0x{found:02x} at {error.start}") from None

    def notes(self, dtype: str | None, input_dtypes: Sequence[str]) -> list[str]:
        """Return which comments were probably meant as dtypes, where nothing else says those."""
        notes = []
        asked: tuple[tuple[ContractKey, bool], ...] = (("dtype", dtype is None), ("input_dtype", not input_dtypes))
        for key, is_open in asked:
            found = near_miss(self.source, key) if is_open and not _Texts.of(self, key, []).texts else None
            notes += [found] if found else []
        return notes

    def contracts(
        self, inputs: Sequence[str], outputs: Sequence[str], dtype: str | None, input_dtypes: Sequence[str]
    ) -> dict[str, Any]:
        """Return the contracts as ``resolve`` takes them: those of the options, and where there are none, the comments.

        Raises:
            ConfigurationError: an option that is no contract; neither an option nor a comment for input or output.
            NetworkError: ``E_SCHEMA``: a comment that is no contract.
        """
        shapes: dict[str, ShapeContract] = {}
        sides: tuple[tuple[ContractKey, Sequence[str]], ...] = (("input", inputs), ("output", outputs))
        for key, given in sides:
            texts = _Texts.of(self, key, given)
            if not texts.texts:
                found = near_miss(self.source, key)
                advice = f"--{key} B,6, or a comment at the top such as # {key}: B, 6{f'; {found}' if found else ''}"
                raise ConfigurationError(f"{self.name}: the {key} contract is missing: {advice}")
            shapes[f"{key}_shape"] = read_shapes(texts.texts, texts.refuse)
        dtypes = _Texts.of(self, "dtype", [] if dtype is None else [dtype])
        if len(dtypes.texts) > 1:
            raise dtypes.refuse(1, "it is given twice")
        of_inputs = _Texts.of(self, "input_dtype", input_dtypes)
        return {
            **shapes,
            "dtype": dtypes.texts[0] if dtypes.texts else "float32",
            "input_dtype": read_input_dtype(of_inputs.texts, of_inputs.refuse) if of_inputs.texts else None,
        }

    def resolve(self, contracts: dict[str, Any]) -> ResolvedNetwork:
        """Return the network; errors that only name a node also have its line and column.

        Raises:
            NetworkError: see :func:`mila.network_language.resolve`.
        """
        try:
            return resolve(self.source, **contracts)
        except NetworkError as error:
            if error.node is None or error.line is not None:
                raise
            place = self._place_of(error.node, contracts["input_shape"])
            raise place.error(error.code, error.message, node=error.node) from None

    def _place_of(self, node_id: str, input_shape: ShapeContract) -> Place:
        capture = Capture.of_inputs(BUILT_IN, contract_names(input_shape, "x", BUILT_IN))
        capture.run(parse(self.source, BUILT_IN))
        return next(node.place for node in capture.nodes if node.id == node_id)

    def excerpt(self, error: NetworkError) -> str:
        """Return the line that an error is about and a caret below the place; empty for one without a place."""
        lines = self.source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if error.line is None or error.column is None or not 1 <= error.line <= len(lines):
            return ""
        line, start = lines[error.line - 1].replace("\t", " "), 0
        if len(line) > _WIDEST_EXCERPT:
            start = min(max(error.column - _WIDEST_EXCERPT // 2, 0), len(line) - _WIDEST_EXCERPT)
        before = "…" if start else ""
        after = "…" if start + _WIDEST_EXCERPT < len(line) else ""
        shown = without_controls(before + line[start : start + _WIDEST_EXCERPT] + after)
        indent = cell_len(without_controls(before + line[start : error.column - 1]))
        number = f"{error.line:4}"
        return f"{number} | {shown}\n{' ' * len(number)} | {' ' * indent}^"


@dataclass(frozen=True)
class _Texts:
    """Contracts of one kind, and how to refuse them."""

    texts: list[str]
    errors: list[Any]

    @classmethod
    def of(cls, definition: Definition, key: ContractKey, given: Sequence[str]) -> _Texts:
        if given:
            option = f"--{key.replace('_', '-')}"
            return cls([*given], [lambda message: ConfigurationError(f"{option}: {message}")] * len(given))
        comments = [comment for comment in contract_comments(definition.source) if comment.key == key]
        return cls([comment.value for comment in comments], [comment.refuse for comment in comments])

    def refuse(self, index: int, message: str) -> Exception:
        error: Exception = self.errors[index](message)
        return error


def network_document(network: ResolvedNetwork) -> dict[str, Any]:
    """A resolved network for machines: what its tables say, its arguments, parameters and digests."""
    return {
        "event": "network",
        "dtype": network.dtype,
        "inputs": [_external(tensor) for tensor in network.inputs],
        "outputs": [_external(tensor) for tensor in network.outputs],
        "nodes": [_node(node) for node in network.nodes],
        "parameters": network.parameter_count(),
        "semantic_digest": network.semantic_digest,
        "artifact_digest": network.artifact_digest,
    }


def error_document(error: NetworkError) -> dict[str, Any]:
    """What is wrong with a definition, for machines."""
    return {
        "event": "error",
        "code": error.code,
        "message": error.message,
        "node": error.node,
        "line": error.line,
        "column": error.column,
    }


def operator_document(operator: Operator) -> dict[str, Any]:
    """A declaration, for machines."""
    return {
        "event": "operator",
        "name": operator.alias,
        "identity": operator.identity,
        "category": operator.category,
        "summary": operator.summary,
        "documentation": operator.documentation,
        "pattern": operator.pattern,
        "call": call_form(operator),
        "arguments": [_argument(argument) for argument in operator.arguments],
    }


def operator_lines(operators: Sequence[Operator]) -> list[str]:
    """Names and summaries, by category."""
    width = max(len(operator.alias) for operator in operators)
    lines: list[str] = []
    category = ""
    for operator in operators:
        if operator.category != category:
            category = operator.category
            lines += ["", category] if lines else [category]
        lines.append(f"  {operator.alias:{width}}  {operator.summary}")
    return lines


def _external(tensor: ExternalTensor) -> dict[str, Any]:
    return {"name": tensor.name, "ref": tensor.ref, "shape": tensor.shape, "dtype": tensor.dtype}


def _node(node: ResolvedNode) -> dict[str, Any]:
    return {
        "id": node.id,
        "operation": node.operator.alias,
        "identity": node.operator.identity,
        "arguments": dict(node.arguments),
        "provenance": dict(node.provenance),
        "inputs": {port: {"from": node.inputs[port], "shape": shape} for port, shape in node.input_shapes.items()},
        "outputs": {port: {"shape": shape} for port, shape in node.output_shapes.items()},
        "parameters": node.parameter_shapes(),
        "line": node.place.line,
        "column": node.place.column,
    }


def _argument(argument: Argument) -> dict[str, Any]:
    return {
        "name": argument.name,
        "type": argument.type,
        "required": argument.required,
        "inferable": argument.inferable,
        "default": argument.default,
        "positional": argument.positional,
        "constraints": argument.constraints(),
        "axis": argument.dimension,
        "help": argument.help,
    }
