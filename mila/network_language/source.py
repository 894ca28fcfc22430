"""The text of a network definition as statements: the declarative part of Python, parsed and never executed."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection
from dataclasses import dataclass

from mila.errors import NetworkError, NetworkErrorCode
from mila.network_language import limits
from mila.network_language.wording import did_you_mean, shown

_LONG_INTEGER = f"an integer of more than {limits.LARGEST_LITERAL_BITS} bits"
#: How many items of a list a message repeats, and how many characters of them.
_MOST_SHOWN, _WIDEST_SHOWN = 8, 120


@dataclass(frozen=True)
class Place:
    """A line of the source and a character of that line, both from 1."""

    line: int
    column: int

    def error(self, code: NetworkErrorCode, message: str, *, node: str | None = None) -> NetworkError:
        """Return the error for something at this place."""
        return NetworkError(code, message, node=node, line=self.line, column=self.column)


@dataclass(frozen=True)
class Name:
    """A local: a tensor, or several of them."""

    identifier: str
    place: Place


@dataclass(frozen=True)
class Constant:
    """A literal; lists are tuples here."""

    value: object
    place: Place


@dataclass(frozen=True)
class Call:
    """An operator applied to tensors and literals."""

    alias: str
    positional: tuple[Name | Constant | Call, ...]
    keywords: tuple[tuple[str, Name | Constant | Call], ...]
    place: Place


@dataclass(frozen=True)
class Group:
    """Several tensors on the right of an assignment."""

    items: tuple[Name | Call, ...]
    place: Place


@dataclass(frozen=True)
class Statement:
    """A call alone (without targets), or an assignment.

    Attributes:
        targets: the names that are bound.
        unpacks: whether they are a tuple, even of one name.
        value: the right side.
        place: where the statement starts.
    """

    targets: tuple[Name, ...]
    unpacks: bool
    value: Name | Call | Group
    place: Place


def parse(source: str, aliases: Collection[str]) -> list[Statement]:
    """Return the statements of a definition; every call names one of ``aliases``.

    Raises:
        NetworkError: ``E_SYNTAX`` for anything outside the language, ``E_NAME`` for an assignment to the name of an
            operator, ``E_RESOURCE`` for text beyond the limits.
        TypeError: a source that is not a string.
    """
    if not isinstance(source, str):
        raise TypeError(f"the source of a network is a str, got {type(source).__name__}")
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    _check_size(text)
    dedented = textwrap.dedent(text)
    reader = _Reader(dedented.split("\n"), _margin(text, dedented), aliases)
    module = _syntax_tree(dedented, reader)
    _check_tree(module, reader)
    statements = [reader.statement(node) for node in module.body]
    for statement in statements:
        for target in statement.targets:
            if target.identifier in aliases:
                raise target.place.error(
                    "E_NAME", f"{target.identifier} is an operator and cannot be assigned to; choose another name"
                )
    return statements


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise NetworkError(
            "E_SYNTAX", f"the source is no Unicode text: half a surrogate pair at {error.start}"
        ) from None
    if size > limits.LARGEST_SOURCE_BYTES:
        raise NetworkError("E_RESOURCE", f"the source has {size:,} bytes; at most {limits.LARGEST_SOURCE_BYTES:,}")
    lines = text.count("\n") + 1
    if lines > limits.MOST_SOURCE_LINES:
        raise NetworkError("E_RESOURCE", f"the source has {lines:,} lines; at most {limits.MOST_SOURCE_LINES:,}")


def _margin(text: str, dedented: str) -> int:
    """Return how many characters every line lost at its start."""
    for before, after in zip(text.split("\n"), dedented.split("\n"), strict=True):
        if after:
            return len(before) - len(after)
    return 0


def _syntax_tree(text: str, reader: _Reader) -> ast.Module:
    try:
        return ast.parse(text, feature_version=(3, 11))
    except SyntaxError as error:
        place = Place(error.lineno or 1, max(error.offset or 1, 1) + reader.margin)
        if "integer string conversion" in error.msg:  # Python reads no integers of thousands of digits
            raise place.error("E_RESOURCE", _LONG_INTEGER) from None
        raise place.error("E_SYNTAX", f"not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise NetworkError("E_RESOURCE", "the source is nested too deeply to follow") from None
    except ValueError as error:  # NUL characters, before Python 3.11.4
        raise NetworkError("E_SYNTAX", f"not valid Python: {error}") from None


def _check_tree(module: ast.Module, reader: _Reader) -> None:
    count = 0
    pending: list[tuple[ast.AST, int]] = [(module, 0)]
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > limits.MOST_SYNTAX_NODES:
            raise NetworkError("E_RESOURCE", f"the source has more than {limits.MOST_SYNTAX_NODES:,} syntax nodes")
        if depth > limits.DEEPEST_SYNTAX:
            raise NetworkError("E_RESOURCE", f"the source is nested more than {limits.DEEPEST_SYNTAX} levels deep")
        if not isinstance(node, ast.Module):
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and len(value) > limits.MOST_ITEMS:
                    message = f"{len(value):,} items; a container or call takes at most {limits.MOST_ITEMS:,}"
                    raise reader.place(node).error("E_RESOURCE", message)
        pending.extend((child, depth + 1) for child in ast.iter_child_nodes(node))


class _Reader:
    """Reads the nodes of Python's syntax tree that the language has, and refuses all others."""

    def __init__(self, lines: list[str], margin: int, aliases: Collection[str]) -> None:
        self._lines = lines
        self.margin = margin
        self._aliases = aliases

    def place(self, node: ast.AST) -> Place:
        """Return where a node starts in the text as it was given."""
        line: int = getattr(node, "lineno", 1)
        start: int = getattr(node, "col_offset", 0)
        characters = len(self._lines[line - 1].encode()[:start].decode())  # Python counts bytes
        return Place(line, characters + 1 + self.margin)

    def statement(self, node: ast.stmt) -> Statement:
        place = self.place(node)
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Call):
                raise place.error("E_SYNTAX", "a statement is a call of an operator or an assignment")
            return Statement((), False, self._call(node.value), place)
        if not isinstance(node, ast.Assign):
            raise place.error(
                "E_SYNTAX",
                f"{_described(node)} is outside the language: write calls of operators, and assignments of results",
            )
        if len(node.targets) != 1:
            raise place.error("E_SYNTAX", "an assignment has one target; write one assignment per name")
        target = node.targets[0]
        unpacks = isinstance(target, ast.Tuple | ast.List)
        names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        return Statement(self._targets(names, place), unpacks, self._right_side(node.value), place)

    def _targets(self, nodes: list[ast.expr], statement: Place) -> tuple[Name, ...]:
        names: list[Name] = []
        for node in nodes:
            place = self.place(node)
            if not isinstance(node, ast.Name):
                raise place.error("E_SYNTAX", f"a target is a name or a flat tuple of names, got {_described(node)}")
            if node.id.startswith("__"):
                raise place.error("E_SYNTAX", f"a name may not start with two underscores: {shown(node.id)}")
            if node.id in (name.identifier for name in names):
                raise place.error("E_SYNTAX", f"{shown(node.id)} is bound twice by one assignment")
            names.append(Name(node.id, place))
        if not names:
            raise statement.error("E_SYNTAX", "an assignment without a name")
        return tuple(names)

    def _right_side(self, node: ast.expr) -> Name | Call | Group:
        if isinstance(node, ast.Tuple):
            return Group(tuple(self._tensor(item) for item in node.elts), self.place(node))
        return self._tensor(node)

    def _tensor(self, node: ast.expr) -> Name | Call:
        if isinstance(node, ast.Name):
            return Name(node.id, self.place(node))
        if isinstance(node, ast.Call):
            return self._call(node)
        message = f"the right side of an assignment is a tensor or a call of an operator, got {_described(node)}"
        raise self.place(node).error("E_SYNTAX", message)

    def _call(self, node: ast.Call) -> Call:
        place = self.place(node)
        if not isinstance(node.func, ast.Name):
            raise place.error("E_SYNTAX", f"an operator is called by its name, got {_described(node.func)}")
        alias = node.func.id
        if alias not in self._aliases:
            raise place.error("E_SYNTAX", f"there is no operator {shown(alias)}{did_you_mean(alias, self._aliases)}")
        keywords: list[tuple[str, Name | Constant | Call]] = []
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.place(keyword).error("E_SYNTAX", "** is outside the language; write the arguments out")
            if keyword.arg in dict(keywords):
                raise self.place(keyword).error("E_SYNTAX", f"{shown(keyword.arg)} is given twice")
            keywords.append((keyword.arg, self._argument(keyword.value)))
        self._check_lists(alias, node.args)
        return Call(alias, tuple(self._argument(item) for item in node.args), tuple(keywords), place)

    def _check_lists(self, alias: str, arguments: list[ast.expr]) -> None:
        """Refuse tensors in a list: each is an argument of its own."""
        for argument in arguments:
            items = argument.elts if isinstance(argument, ast.List | ast.Tuple) else []
            inside = next((item for item in items if isinstance(item, ast.Name | ast.Call)), None)
            if inside is not None:
                few = len(items) <= _MOST_SHOWN and all(isinstance(item, ast.Name) for item in items)
                tensors = ", ".join(map(ast.unparse, items)) if few else "a, b, ..."
                message = f"a list holds no tensors; write {alias}({tensors[:_WIDEST_SHOWN]})"
                raise self.place(inside).error("E_SYNTAX", message)

    def _argument(self, node: ast.expr) -> Name | Constant | Call:
        if isinstance(node, ast.Name | ast.Call):
            return self._tensor(node)
        return Constant(self._literal(node), self.place(node))

    def _literal(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return self._scalar(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            number = self._scalar(node.operand) if isinstance(node.operand, ast.Constant) else None
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number if isinstance(node.op, ast.USub) else number
        if isinstance(node, ast.List | ast.Tuple):
            return tuple(self._literal(item) for item in node.elts)
        if isinstance(node, ast.Dict):
            return self._mapping(node)
        raise self.place(node).error(
            "E_SYNTAX", f"an argument is a literal, a tensor or a call of an operator, got {_described(node)}"
        )

    def _mapping(self, node: ast.Dict) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise self.place(node).error("E_SYNTAX", "the keys of a mapping are strings")
            if key.value in result:
                raise self.place(key).error("E_SYNTAX", f"the key {shown(key.value)} is given twice")
            result[str(self._scalar(key))] = self._literal(value)
        return result

    def _scalar(self, node: ast.Constant) -> object:
        value = node.value
        place = self.place(node)
        if isinstance(value, str):
            if len(value.encode(errors="surrogatepass")) > limits.LONGEST_STRING_BYTES:
                raise place.error("E_RESOURCE", f"a string of more than {limits.LONGEST_STRING_BYTES:,} bytes")
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            if value.bit_length() > limits.LARGEST_LITERAL_BITS:
                raise place.error("E_RESOURCE", _LONG_INTEGER)
            return value
        if value is None or isinstance(value, bool | float):
            return value
        raise place.error("E_SYNTAX", f"{_described(node)} is outside the language")


_DESCRIPTIONS = {
    ast.BinOp: "arithmetic",
    ast.BoolOp: "a condition",
    ast.Compare: "a comparison",
    ast.Attribute: "an attribute",
    ast.Subscript: "a subscript",
    ast.Starred: "a starred item",
    ast.JoinedStr: "an f-string",
    ast.Lambda: "a lambda",
    ast.Constant: "a literal",
    ast.List: "a list",
    ast.Tuple: "a tuple",
    ast.Dict: "a mapping",
    ast.Import: "an import",
    ast.ImportFrom: "an import",
    ast.FunctionDef: "a function",
    ast.ClassDef: "a class",
    ast.For: "a loop",
    ast.While: "a loop",
    ast.If: "a condition",
    ast.With: "a with block",
    ast.AugAssign: "an augmented assignment",
    ast.AnnAssign: "an annotated assignment",
}


def _described(node: ast.AST) -> str:
    return _DESCRIPTIONS.get(type(node), f"Python's {type(node).__name__}")
