"""From statements to nodes: locals, the current tensor, ports and arguments of every call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mila.errors import NetworkError
from mila.network_language import limits
from mila.network_language.arguments import RESERVED, Value
from mila.network_language.operator import Operator
from mila.network_language.registry import Registry
from mila.network_language.settings import Settings, read_settings
from mila.network_language.source import Call, Constant, Group, Name, Place, Statement
from mila.network_language.wording import did_you_mean, listed, shown

Ref = str
"""Where a tensor comes from: ``input:x`` or ``node:n0/out``."""
Tensors = Ref | tuple[Ref, ...]

EXPLICIT, DEFAULT, INFERRED = "explicit", "operator default", "inferred"
NODE_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Node:
    """A call with its ports bound and its arguments checked.

    Attributes:
        id: the name in the network.
        operator: what it applies.
        inputs: where each input comes from, in order of declaration.
        arguments: those that are known before inference.
        origins: where each of them comes from.
        settings: what is said about its parameters.
        place: where the call stands.
    """

    id: str
    operator: Operator
    inputs: Mapping[str, Ref]
    arguments: Mapping[str, Value]
    origins: Mapping[str, str]
    settings: Settings
    place: Place

    @property
    def label(self) -> str:
        """The node in words, for messages."""
        return f"{self.id} ({self.operator.alias}, line {self.place.line})"

    def outputs(self) -> dict[str, Ref]:
        """Return the reference of each output, in order of declaration."""
        return {port: f"node:{self.id}/{port}" for port, _ in self.operator.output_ports(self.arguments)}


@dataclass(frozen=True)
class Captured:
    """The nodes of a definition in order, and where each output comes from."""

    nodes: list[Node]
    outputs: Mapping[str, Ref]


def normalized_arguments(
    operator: Operator, given: Mapping[str, object], place: Place
) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the arguments that a call has before inference, and where each comes from.

    Raises:
        NetworkError: ``E_ARGUMENT``: missing, wrong type, out of bounds, no choice, or contradicting another.
    """
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for argument in operator.arguments:
        if argument.name in given:
            try:
                value = argument.checked(
                    given[argument.name], lambda message: place.error("E_ARGUMENT", f"{operator.alias}: {message}")
                )
            except NetworkError as error:
                raise place.error(error.code, error.message) from None
            values[argument.name], origins[argument.name] = value, EXPLICIT
        elif argument.default is not None:
            values[argument.name], origins[argument.name] = argument.default, DEFAULT
        elif argument.required:
            raise place.error("E_ARGUMENT", f"{operator.alias}: {argument.name} is missing ({argument.help})")
    message = operator.validate(values) if operator.validate is not None else None
    if message is not None:
        raise place.error("E_ARGUMENT", f"{operator.alias}: {message}")
    return values, origins


@dataclass
class Capture:
    """Runs through the statements of a definition.

    Attributes:
        registry: the operators.
        locals: what each name holds; at first the inputs.
        current: what an operator with one input reads when the call names none; ``None`` after one with several
            outputs.
        nodes: the nodes so far.
    """

    registry: Registry
    locals: dict[str, Tensors]
    current: Ref | None
    nodes: list[Node] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    @classmethod
    def of_inputs(cls, registry: Registry, inputs: Iterable[str]) -> Capture:
        """Return a capture that has read nothing yet."""
        tensors: dict[str, Tensors] = {name: f"input:{name}" for name in inputs}
        return cls(registry, tensors, f"input:{next(iter(tensors))}")

    def run(self, statements: Iterable[Statement]) -> None:
        """Read statements in order."""
        for statement in statements:
            value = self._value(statement.value)
            if statement.unpacks:
                self._unpack(statement, value)
            elif statement.targets:
                self.locals[statement.targets[0].identifier] = value

    def output(self) -> Ref:
        """Return the one output: ``out`` where it is bound, else the current tensor."""
        if "out" in self.locals:
            return self._one(self.locals["out"], "out")
        if self.current is None:
            raise NetworkError(
                "E_CURRENT", "the last operator gave several tensors; say which one is the output: out = ..."
            )
        return self.current

    def named_outputs(self, names: Iterable[str]) -> dict[str, Ref]:
        """Return the outputs that have names: the locals of these names."""
        missing = [name for name in names if name not in self.locals]
        if missing:
            raise NetworkError(
                "E_OUTPUT", f"the output contract names {', '.join(missing)}, but no assignment of the source does"
            )
        return {name: self._one(self.locals[name], name) for name in names}

    def _one(self, value: Tensors, name: str) -> Ref:
        if isinstance(value, tuple):
            raise NetworkError("E_OUTPUT", f"{name} is one tensor, got {len(value)}; unpack them first")
        return value

    def _unpack(self, statement: Statement, value: Tensors) -> None:
        count = len(value) if isinstance(value, tuple) else 1
        if not isinstance(value, tuple) or count != len(statement.targets):
            got = f"{count} tensors" if isinstance(value, tuple) else "one tensor that is no tuple"
            raise statement.place.error(
                "E_OUTPUT_ARITY", f"{len(statement.targets)} names on the left, {got} on the right"
            )
        self.locals.update({target.identifier: item for target, item in zip(statement.targets, value, strict=True)})

    def _value(self, expression: Name | Call | Group) -> Tensors:
        if isinstance(expression, Group):
            return tuple(self._tensor(item) for item in expression.items)
        if isinstance(expression, Call):
            return self._call(expression)
        name = expression.identifier
        if name not in self.locals:
            hint = f"; it is an operator: write {name}(...)" if name in self.registry else ""
            hint = hint or did_you_mean(name, self.locals)
            raise expression.place.error("E_NAME", f"{shown(name)} is not defined{hint}")
        return self.locals[name]

    def _tensor(self, expression: Name | Call) -> Ref:
        value = self._value(expression)
        if isinstance(value, tuple):
            message = f"one tensor is needed here, got {len(value)}; unpack them first"
            raise expression.place.error("E_OUTPUT_ARITY", message)
        return value

    def _call(self, call: Call) -> Tensors:
        operator = self.registry[call.alias]
        positional = [self._argument(item, operator) for item in call.positional]
        keywords = {name: self._argument(item, operator) for name, item in call.keywords}
        reserved = {name: keywords.pop(name) for name in RESERVED if name in keywords}
        try:
            settings = read_settings(call.alias, {name: _literal(value) for name, value in reserved.items()})
        except NetworkError as error:
            raise call.place.error(error.code, error.message) from None
        inputs = _Binding(operator, call.place, self.current).bind(positional, keywords)
        node_id = self._node_id(_literal(reserved["name"]) if "name" in reserved else f"n{len(self.nodes)}", call.place)
        if len(self.nodes) == limits.MOST_NODES:
            raise call.place.error("E_RESOURCE", f"more than {limits.MOST_NODES:,} nodes")
        given = _named_arguments(operator, positional, keywords, call.place)
        count = operator.count if operator.ports.inputs[0].variadic else None
        if count is not None and given.setdefault(count, len(inputs)) != len(inputs):
            message = f"{call.alias}: {len(inputs)} inputs, but {count}={shown(given[count])}"
            raise call.place.error("E_BINDING", message)
        arguments, origins = normalized_arguments(operator, given, call.place)
        node = Node(node_id, operator, inputs, arguments, origins, settings, call.place)
        self._ids.add(node_id)
        self.nodes.append(node)
        return self._result(node)

    def _result(self, node: Node) -> Tensors:
        outputs = tuple(node.outputs().values())
        if len(outputs) == 1 and not node.operator.ports.outputs[0].variadic:
            self.current = outputs[0]
            return outputs[0]
        self.current = None
        return outputs

    def _argument(self, item: Name | Constant | Call, operator: Operator) -> _Tensor | Constant:
        if isinstance(item, Constant):
            return item
        if isinstance(item, Name) and item.identifier not in self.locals:
            choices = [choice for argument in operator.arguments for choice in argument.choices]
            if item.identifier in choices:
                message = f'{shown(item.identifier)} is not defined; if the string is meant, write "{item.identifier}"'
                raise item.place.error("E_NAME", message)
        return _Tensor(self._tensor(item))

    def _node_id(self, name: object, place: Place) -> str:
        if not isinstance(name, str) or not NODE_NAME.fullmatch(name) or len(name) > limits.LONGEST_NAME:
            allowed = f"a lower-case letter, then lower-case letters, digits or _, {limits.LONGEST_NAME} at most"
            raise place.error("E_NAME", f"name= is {allowed}; got {shown(name)}")
        if name in self._ids:
            raise place.error("E_NAME", f"there is a node {shown(name)} already")
        return name


@dataclass(frozen=True)
class _Tensor:
    ref: Ref

    def __repr__(self) -> str:
        return f"the tensor {self.ref}"


def _literal(value: _Tensor | Constant) -> object:
    """Return what a literal says; a tensor stays what it is, and no argument accepts it."""
    return value.value if isinstance(value, Constant) else value


class _Binding:
    """Finds the tensor of each input of a call."""

    def __init__(self, operator: Operator, place: Place, current: Ref | None) -> None:
        self._operator = operator
        self._place = place
        self._current = current
        self._variadic = operator.ports.inputs[0].variadic

    def bind(self, positional: list[_Tensor | Constant], keywords: dict[str, _Tensor | Constant]) -> dict[str, Ref]:
        """Take the tensors out of ``positional`` and ``keywords``; return them by port."""
        bound: dict[str, Ref] = {}
        names = self._port_names(positional, keywords)
        while positional and isinstance(tensor := positional[0], _Tensor) and len(bound) < len(names):
            bound[names[len(bound)]] = tensor.ref
            del positional[0]
        if positional and isinstance(positional[0], _Tensor):
            got = len(bound) + sum(isinstance(value, _Tensor) for value in positional)
            takes = f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({', '.join(names)})"
            raise self._place.error("E_ARGUMENT", f"{self._operator.alias}: it takes {takes}, got {got}")
        for name in names:
            if name not in keywords:
                continue
            if name in bound:
                raise self._error(f"input {name} is given twice")
            value = keywords.pop(name)
            if not isinstance(value, _Tensor):
                raise self._no_tensor(name, value)
            bound[name] = value.ref
        self._complete(bound, names, positional)
        return {name: bound[name] for name in names}

    def _complete(self, bound: dict[str, Ref], names: list[str], left: list[_Tensor | Constant]) -> None:
        if self._variadic and len(names) < 2:
            raise self._error(f"it takes two tensors or more, got {len(names)}")
        missing = [name for name in names if name not in bound]
        if not missing:
            return
        if len(names) > 1:
            if left and not any(argument.positional for argument in self._operator.arguments):
                raise self._no_tensor(missing[0], left[0])
            raise self._error(f"input {missing[0]} is missing; write {self._operator.alias}({', '.join(names)}, ...)")
        if self._current is None:
            message = "the operator before gave several tensors; say which one to read"
            raise self._place.error("E_CURRENT", f"{self._operator.alias}: {message}")
        bound[names[0]] = self._current

    def _port_names(
        self, positional: list[_Tensor | Constant], keywords: Mapping[str, _Tensor | Constant]
    ) -> list[str]:
        if not self._variadic:
            return [port.name for port in self._operator.ports.inputs]
        stem = self._operator.ports.inputs[0].name
        leading = 0
        while leading < len(positional) and isinstance(positional[leading], _Tensor):
            leading += 1
        by_keyword = sum(1 for name in keywords if re.fullmatch(rf"{stem}(0|[1-9][0-9]*)", name))
        return [f"{stem}{index}" for index in range(leading + by_keyword)]

    def _no_tensor(self, name: str, got: _Tensor | Constant) -> NetworkError:
        value = _literal(got)
        hint = ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            hint = f"; constant(value={shown(value)}) makes a tensor of a number"
        return self._error(f"input {name} is a tensor, got {shown(value)}{hint}")

    def _error(self, message: str) -> NetworkError:
        return self._place.error("E_BINDING", f"{self._operator.alias}: {message}")


def _named_arguments(
    operator: Operator, positional: list[_Tensor | Constant], keywords: Mapping[str, _Tensor | Constant], place: Place
) -> dict[str, object]:
    """Return the arguments of a call by name; their values are not checked yet."""
    given: dict[str, object] = {}
    values = [_literal(value) for value in positional]
    slots = [argument for argument in operator.arguments if argument.positional]
    for slot in slots:
        if slot.type == "ints" and values:
            one_list = len(values) == 1 and isinstance(values[0], tuple)
            given[slot.name], values = values[0] if one_list else tuple(values), []
        elif values:
            given[slot.name] = values.pop(0)
    if values:
        count = f"at most {len(slots)} arguments by position"
        by_name = listed(argument.name for argument in operator.arguments if not argument.positional)
        message = f"{operator.alias} takes {count} after its tensors, got {len(positional)}; by name: {by_name}"
        raise place.error("E_ARGUMENT", message)
    known = [argument.name for argument in operator.arguments]
    unknown = [name for name in keywords if name not in known]
    if unknown:
        ports = [port.name for port in operator.ports.inputs]
        hint = did_you_mean(unknown[0], [*known, *ports, *RESERVED])
        message = f"{operator.alias} has no argument {listed(map(shown, unknown))}; it has {listed(known)}{hint}"
        raise place.error("E_ARGUMENT", message)
    for name, value in keywords.items():
        if name in given:
            raise place.error("E_ARGUMENT", f"{operator.alias}: {name} is given twice, by position and by keyword")
        given[name] = _literal(value)
    return given
