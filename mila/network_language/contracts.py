"""Input and output contracts: names, shapes with a free or a fixed batch, dtypes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from mila.errors import NetworkError
from mila.network_language import limits
from mila.network_language.shapes import Entry, NetworkShape, row_elements, shape_text
from mila.network_language.wording import listed, shown

NETWORK_DTYPES = ("float32", "float16", "bfloat16")
INTEGER_DTYPES = ("int64", "int32", "bool")
INPUT_DTYPES = (*NETWORK_DTYPES, *INTEGER_DTYPES)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Contracts:
    """What goes in and what comes out.

    Attributes:
        inputs: shapes by name, in the author's order.
        outputs: the same of the outputs.
        dtype: the dtype in which the network is stored.
        input_dtypes: the dtype of each input.
    """

    inputs: Mapping[str, NetworkShape]
    outputs: Mapping[str, NetworkShape]
    dtype: str
    input_dtypes: Mapping[str, str]


def contract_names(contract: object, default: str, aliases: Container[str]) -> dict[str, object]:
    """Return the shapes of a contract by name, not checked yet; a shape alone has the name ``default``.

    Raises:
        NetworkError: ``E_SCHEMA``, ``E_NAME``.
    """
    side = "input" if default == "x" else "output"
    if not isinstance(contract, Mapping):
        return {default: contract}
    if not 1 <= len(contract) <= limits.MOST_PORTS:
        raise NetworkError("E_SCHEMA", f"{side}_shape names 1 to {limits.MOST_PORTS} tensors, got {len(contract)}")
    for name in contract:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > limits.LONGEST_NAME:
            message = f"{side}_shape: a name is a lower-case letter, then lower-case letters, digits or _"
            raise NetworkError("E_SCHEMA", f"{message}, got {shown(name)}")
        if keyword.iskeyword(name):
            raise NetworkError("E_SCHEMA", f"{side}_shape: {name} is a keyword of Python, which no text can read")
        if name in aliases:
            raise NetworkError("E_NAME", f"{side}_shape: {name} is an operator; choose another name")
    return dict(contract)


def read_contracts(
    inputs: Mapping[str, object], outputs: Mapping[str, object], dtype: object, input_dtype: object
) -> Contracts:
    """Return the contracts, checked.

    Raises:
        NetworkError: ``E_SCHEMA``, ``E_RESOURCE``, and ``E_CONSTRAINT`` for two different batches.
    """
    if dtype not in NETWORK_DTYPES or not isinstance(dtype, str):
        raise NetworkError("E_SCHEMA", f"dtype is one of {', '.join(NETWORK_DTYPES)}, got {shown(dtype)}")
    dtypes = _input_dtypes(input_dtype, inputs, dtype)
    input_shapes = {name: _shape(shape, f"input {name}") for name, shape in inputs.items()}
    output_shapes = {name: _shape(shape, f"output {name}") for name, shape in outputs.items()}
    labelled = [
        *((f"input {name}", shape) for name, shape in input_shapes.items()),
        *((f"output {name}", shape) for name, shape in output_shapes.items()),
    ]
    first, batch = labelled[0][0], labelled[0][1][0]
    for label, shape in labelled:
        if shape[0] != batch:
            message = f"all contracts have one batch: it is {batch} in {first}, but {shape[0]} in {label}"
            raise NetworkError("E_CONSTRAINT", message)
    return Contracts(input_shapes, output_shapes, dtype, dtypes)


def _input_dtypes(given: object, inputs: Mapping[str, object], dtype: str) -> dict[str, str]:
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(inputs, dtype if given is None else given)
    undeclared = [name for name in by_name if name not in inputs]
    if undeclared:
        raise NetworkError("E_SCHEMA", f"input_dtype names {listed(map(shown, undeclared))}, no input of input_shape")
    result: dict[str, str] = {}
    for name in inputs:
        input_dtype = by_name.get(name, dtype)
        if not isinstance(input_dtype, str) or input_dtype not in INPUT_DTYPES:
            message = f"the dtype of input {name} is one of {', '.join(INPUT_DTYPES)}, got {shown(input_dtype)}"
            raise NetworkError("E_SCHEMA", message)
        if input_dtype in NETWORK_DTYPES and input_dtype != dtype:
            message = f"a floating input has the network's dtype {dtype}, but input {name} is {input_dtype}"
            raise NetworkError("E_SCHEMA", message)
        result[name] = input_dtype
    return result


def _shape(shape: object, label: str) -> NetworkShape:
    if not isinstance(shape, tuple | list):
        raise NetworkError("E_SCHEMA", f'{label}: a shape is a tuple such as ("B", 6, 8), got {shown(shape)}')
    if not limits.LOWEST_RANK <= len(shape) <= limits.HIGHEST_RANK:
        ranks = f"{limits.LOWEST_RANK} to {limits.HIGHEST_RANK}"
        raise NetworkError("E_SCHEMA", f"{label}: a shape has {ranks} axes with the batch, got {shown(shape)}")
    entries: list[Entry] = []
    for axis, entry in enumerate(shape):
        if axis == 0 and isinstance(entry, str) and entry == "B":
            entries.append("B")
        elif isinstance(entry, int) and not isinstance(entry, bool) and entry > 0:
            entries.append(int(entry))
        else:
            expected = 'the batch is "B" or a positive integer' if axis == 0 else "an axis is a positive integer"
            raise NetworkError("E_SCHEMA", f"{label}: {expected}, got {shown(entry)} at axis {axis}")
        if isinstance(entry, int) and entry > limits.LARGEST_DIMENSION:
            message = f"{label}: axis {axis} is {shown(entry)}; at most {limits.LARGEST_DIMENSION:,}"
            raise NetworkError("E_RESOURCE", message)
    if row_elements(entries) > limits.MOST_ELEMENTS:
        message = f"{label}: {shape_text(entries)} has {row_elements(entries):,} elements"
        raise NetworkError("E_RESOURCE", f"{message}; at most {limits.MOST_ELEMENTS:,}")
    return tuple(entries)
