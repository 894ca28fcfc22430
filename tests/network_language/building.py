"""Networks of the language, built for a batch, and inputs that they take."""

from __future__ import annotations

from typing import Any

import numpy as np

import mila
from mila import BuildContext, DefinedNetwork, ResolvedNetwork, RuntimeMode
from mila.network_language import Example
from mila.network_language.shapes import rows_of
from tests.promises.case import SEED, Array
from tests.promises.gradient_check import as_tuple

Shape = tuple[int, ...]
BOTH_MODES = (RuntimeMode.INFERENCE, RuntimeMode.TRAINING)
#: How many different ids an input has that no table reads.
MOST_IDS = 50


def network_of(case: dict[str, Any], **changes: Any) -> DefinedNetwork:
    """The network of a shared case."""
    contracts = {key: case[key] for key in ("input_shape", "output_shape", "input_dtype")}
    arguments = {"dtype": case.get("dtype") or "float32", "device": "cpu", "seed": SEED, **contracts, **changes}
    return mila.network(case["config"], **arguments)


def example_network(example: Example, **changes: Any) -> DefinedNetwork:
    """The network of an operator's example."""
    return mila.network(example.source, **example_contracts(example), **{"device": "cpu", "seed": SEED, **changes})


def example_contracts(example: Example) -> dict[str, Any]:
    """The contracts of an operator's example, as keywords."""
    return {name: getattr(example, name) for name in ("input_shape", "output_shape", "input_dtype")}


def batch_of(resolved: ResolvedNetwork, free: int = 2) -> int:
    """The rows of a fixed batch, or ``free``."""
    rows, is_free = rows_of(resolved.inputs[0].shape[0])
    return free if is_free else rows


def sizes_at(shape: tuple[int | str, ...], batch: int) -> Shape:
    """A shape of the language with ``batch`` rows for each B."""
    rows, is_free = rows_of(shape[0])
    return (rows * batch if is_free else rows, *map(int, shape[1:]))


def input_shapes(resolved: ResolvedNetwork, batch: int) -> dict[str, Shape]:
    """The shape of every input."""
    return {tensor.name: sizes_at(tensor.shape, batch) for tensor in resolved.inputs}


def output_shapes(resolved: ResolvedNetwork, batch: int) -> list[Shape]:
    """The shape of every output, in order."""
    return [sizes_at(tensor.shape, batch) for tensor in resolved.outputs]


def context(network: DefinedNetwork, mode: RuntimeMode, batch: int | None = None, **options: Any) -> BuildContext:
    """The build context of a network, parameters initialized in both modes."""
    rows = batch_of(network.resolved) if batch is None else batch
    return BuildContext(input_shapes(network.resolved, rows), mode, **{"initialize_parameters": True, **options})


def built(network: DefinedNetwork, mode: RuntimeMode, batch: int | None = None, **options: Any) -> DefinedNetwork:
    """The network, built."""
    network.build(context(network, mode, batch, **options))
    return network


def id_limit(resolved: ResolvedNetwork, name: str) -> int:
    """How many ids an input may hold: the rows of the smallest table that reads it."""
    readers = [node for node in resolved.nodes if node.inputs.get("ids") == f"input:{name}"]
    rows = [node.arguments["num_embeddings"] for node in readers if node.operator.alias == "embedding"]
    return min([row for row in rows if isinstance(row, int)], default=MOST_IDS)


def inputs_of(network: DefinedNetwork, batch: int | None = None, seed: int = 0) -> list[Array]:
    """Random inputs in the order of the contract; activations in the network's dtype, and away from 0."""
    resolved, generator = network.resolved, np.random.default_rng(seed)
    arrays: list[Array] = []
    for tensor in resolved.inputs:
        shape = sizes_at(tensor.shape, batch_of(resolved) if batch is None else batch)
        if tensor.dtype == resolved.dtype:
            values = generator.standard_normal(shape)
            arrays.append((values + np.copysign(0.05, values)).astype(network.dtype))
        elif tensor.dtype == "bool":
            arrays.append(generator.integers(0, 2, shape).astype(bool))
        else:
            arrays.append(generator.integers(0, id_limit(resolved, tensor.name), shape).astype(tensor.dtype))
    return arrays


def outputs_of(network: DefinedNetwork, *inputs: Array) -> list[Array]:
    """Copies of all outputs of one forward."""
    return [array.copy() for array in as_tuple(network.forward(*inputs))]


def named_parameters(network: DefinedNetwork) -> dict[str, Array]:
    """The parameters by name."""
    return dict(zip(network.get_parameter_names(), network.get_parameters(), strict=True))


def named_gradients(network: DefinedNetwork) -> dict[str, Array | None]:
    """The gradients of the parameters by name, ``None`` where frozen."""
    return dict(zip(network.get_parameter_names(), network.get_gradients(), strict=True))
