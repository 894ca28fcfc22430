"""``network``: a definition as a network like any other: planned, built, run and trained in bytes that are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mila.components import Activation, ActivationConfig
from mila.core import Component, ComponentConfig, Graph, Network, Port, Reference
from mila.core.initializers import constant
from mila.core.parameters import ParameterOverride
from mila.core.state import declared_state
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError, NetworkError, ShapeError
from mila.memory.storage import DType, Shape
from mila.network_language.contracts import INTEGER_DTYPES
from mila.network_language.plan_reading import plan_from_json
from mila.network_language.registry import Registry
from mila.network_language.resolved import ExternalTensor, ResolvedNetwork, ResolvedNode
from mila.network_language.resolving import ShapeContract, resolve
from mila.network_language.shapes import rows_of, shape_text


class DefinedNetworkConfig(ComponentConfig):
    """Config of :class:`DefinedNetwork`.

    Attributes:
        plan: the resolved definition as canonical JSON; it makes the same network again.
    """

    plan: str


class DefinedNetwork(Network[DefinedNetworkConfig]):
    """A network that a definition describes: every node is a child, called as the node.

    Its inputs and outputs are those of the contracts, in their order. All axes but the batch are fixed.

    Args:
        name: of the network, in messages and plans.
        config: a saved one, to make its network again; or ``resolved``.
        resolved: what ``resolve`` returned.
        registry: the operators that a saved network was made of; by default those of Mila.
        device: such as ``"cpu"``, or an execution context; without one it can be planned, not built.
        dtype: stored dtype; the definition's by default.
        seed: of initial values and dropout.

    Raises:
        ConfigurationError: neither a config nor a resolved network, or both.
        NetworkError: a plan that cannot be read, an operator whose component does not fit, or an output that is an
            input of integers.
    """

    config_class = DefinedNetworkConfig

    def __init__(
        self,
        name: str,
        config: DefinedNetworkConfig | None = None,
        *,
        resolved: ResolvedNetwork | None = None,
        registry: Registry | None = None,
        device: str | DeviceId | ExecutionContext | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> None:
        if (config is None) == (resolved is None):
            raise ConfigurationError(f"{name}: expected either a config or a resolved network")
        if resolved is None and config is not None:
            resolved = plan_from_json(config.plan, registry=registry)
        assert resolved is not None
        self.resolved = resolved
        self.ports = tuple(_port(tensor) for tensor in resolved.inputs)
        self.output_names = tuple(tensor.name for tensor in resolved.outputs)
        self._integers = {tensor.ref for tensor in resolved.inputs if tensor.dtype in INTEGER_DTYPES}
        self._nodes = {node.id: node for node in resolved.nodes}
        config = config or DefinedNetworkConfig(plan=resolved.to_json())
        super().__init__(name, config, dtype=dtype or resolved.dtype, seed=seed)
        if device is not None:
            self.set_execution_context(device if isinstance(device, ExecutionContext) else ExecutionContext(device))

    def compose(self, graph: Graph, *inputs: Reference) -> tuple[Reference, ...]:
        """One child for each node, in the order in which they run."""
        values = {tensor.ref: reference for tensor, reference in zip(self.resolved.inputs, inputs, strict=True)}
        for node in self.resolved.nodes:
            made = graph.add_many(_configured(node), *(values[ref] for ref in node.inputs.values()))
            for port, reference in zip(node.output_shapes, made, strict=True):
                values[f"node:{node.id}/{port}"] = reference
        returned: list[Reference] = []
        for tensor in self.resolved.outputs:
            value = values[tensor.ref]
            if tensor.ref in self._integers:
                message = f"output {tensor.name} is an input of {tensor.dtype}; outputs are of {self.resolved.dtype}"
                raise NetworkError("E_OUTPUT", message)
            if value in inputs or value in returned:  # an output has bytes of its own
                value = graph.add(Activation(f"copy-{tensor.name}", ActivationConfig(kind="none")), value)
            returned.append(value)
        return tuple(returned)

    @property
    def accepts_prefill_size(self) -> bool:
        """The definition is one for whole sequences."""
        return False

    @property
    def takes_shorter_sequences(self) -> bool:
        """The contracts fix every axis but the batch."""
        return False

    def check_input_shapes(self, shapes: Mapping[str, Shape]) -> None:
        """All inputs have the shapes of their contracts, with one batch.

        Raises:
            ShapeError: another shape, or two batches.
        """
        first = self.resolved.inputs[0].name
        for tensor in self.resolved.inputs:
            rows, is_free = rows_of(tensor.shape[0])
            got, batch = shapes[tensor.name], shapes[first][0]
            if got[1:] != tensor.shape[1:] or (not is_free and got[0] != rows):
                raise ShapeError(f"{self.path}: input {tensor.name!r} expected {_shown(tensor)}, got {got}")
            if got[0] != batch:
                raise ShapeError(
                    f"{self.path}: all inputs have one batch; {first!r} has {batch}, {tensor.name!r} has {got[0]}"
                )

    def check_child(self, child: Component[Any], output_shapes: tuple[Shape, ...]) -> None:
        """Every node makes what its operator says.

        Raises:
            NetworkError: ``E_REGISTRY``: the component of an operator makes other shapes.
        """
        node = self._nodes.get(child.name)
        if node is None:  # a copy
            return
        for (port, expected), got in zip(node.output_shapes.items(), output_shapes, strict=True):
            if got[1:] != expected[1:]:
                message = (
                    f"{node.operator.alias}: {port} is {shape_text(expected)}, but {type(child).__name__} makes "
                    f"{shape_text(got)}"
                )
                raise node.place.error("E_REGISTRY", message, node=node.id)

    def __str__(self) -> str:
        return self.resolved.network_table()


def network(
    source: str,
    *,
    input_shape: ShapeContract,
    output_shape: ShapeContract,
    dtype: str = "float32",
    input_dtype: str | Mapping[str, str] | None = None,
    device: str | DeviceId | ExecutionContext | None = None,
    compute_dtype: str | None = None,
    seed: int | None = None,
    registry: Registry | None = None,
    name: str = "network",
) -> DefinedNetwork:
    """Return the network that a definition describes, unbuilt: nothing is allocated.

    ``network(...)["n0"]`` is the component of node ``n0``; parameters are called ``<node>.<name>``.

    Args:
        source: the definition; it is parsed, never executed.
        input_shape: the shape of the input ``x``, such as ``("B", 6)``, or shapes by name. Axis 0 is the batch: free
            (``"B"``) or fixed.
        output_shape: the shape of the output, or shapes by name.
        dtype: float32, float16 or bfloat16: the stored dtype.
        input_dtype: int64, int32 or bool where an input is not of the network's dtype, for all inputs or by name.
        device: such as ``"cpu"``, or an execution context; without one it can be planned, not built.
        compute_dtype: ``"float64"`` stores and computes everything in float64, for exact checks.
        seed: of initial values and dropout.
        registry: the operators; by default those of Mila.
        name: of the network, in messages and plans.

    Raises:
        NetworkError: anything that the text or the contracts get wrong, with a code and, where there is one, node, line
            and column.
        ConfigurationError: another ``compute_dtype``.
        TypeError: a source that is not a string.
    """
    if compute_dtype not in (None, "float64"):
        raise ConfigurationError(f"{name}: compute_dtype is float64 or left out, got {compute_dtype!r}")
    resolved = resolve(
        source,
        input_shape=input_shape,
        output_shape=output_shape,
        dtype=dtype,
        input_dtype=input_dtype,
        registry=registry,
    )
    return DefinedNetwork(name, resolved=resolved, device=device, dtype=compute_dtype, seed=seed)


def _port(tensor: ExternalTensor) -> Port:
    return Port(tensor.name, is_ids=tensor.dtype in INTEGER_DTYPES, is_mask=tensor.dtype == "bool")


def _shown(tensor: ExternalTensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _configured(node: ResolvedNode) -> Component[Any]:
    """Return the component of a node, with what its call says about parameters."""
    component, settings = node.component(), node.settings
    overrides: dict[Component[Any], dict[str, ParameterOverride]] = {}
    for name, part, declaration in declared_state(component):
        value, is_trainable = settings.initialization.get(name), settings.is_trainable(name)
        if value is not None or not is_trainable:
            initializer = None if value is None else constant(value)
            override = ParameterOverride(initializer=initializer, trainable=None if is_trainable else False)
            overrides.setdefault(part, {})[declaration.name] = override
    for part, of_part in overrides.items():
        part.override_parameters(of_part)
    return component
