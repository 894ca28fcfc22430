"""Composite components: a graph of children, written once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from mila.core.component import Component, ConfigT
from mila.core.graph import Graph, Reference
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError
from mila.memory.storage import DType


class CompositeComponent(Component[ConfigT]):
    """A component made of others: ``compose`` is its forward pass, readable from top to bottom."""

    is_composite: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        config: ConfigT | None = None,
        *,
        device: str | DeviceId | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name, config, device=device, dtype=dtype, seed=seed)
        self._compose_graph()
        if device is not None:
            self.set_execution_context(ExecutionContext(device))

    @abstractmethod
    def compose(self, graph: Graph, *inputs: Reference) -> Reference | tuple[Reference, ...]:
        """Add the children to ``graph``; returns what the component returns. Runs once, in the constructor."""

    def _compose_graph(self) -> None:
        names = [port.name for port in self.ports]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"{self.path}: two inputs have one name: {', '.join(names)}")
        graph = Graph(self, len(self.ports))
        returned = self.compose(graph, *(Reference(graph, i) for i in range(len(self.ports))))
        outputs = returned if isinstance(returned, tuple) else (returned,)
        if len(outputs) != len(self.output_names) or any(
            not isinstance(r, Reference) or r.graph is not graph for r in outputs
        ):
            raise ConfigurationError(
                f"{self.path}: compose must return {len(self.output_names)} references of its graph, got {returned!r}"
            )
        graph.seal()
        self.graph = graph
        self.graph_outputs = tuple(reference.index for reference in outputs)

    @property
    def components(self) -> tuple[Component[Any], ...]:
        """Children, in the order of the graph."""
        return () if self.graph is None else tuple(node.child for node in self.graph.nodes)

    def get_component(self, name: str) -> Component[Any]:
        """The child called ``name``; :class:`ConfigurationError` where there is none."""
        for child in self.components:
            if child.name == name:
                return child
        known = ", ".join(child.name for child in self.components)
        raise ConfigurationError(f"{self.path}: no child called {name!r}; there are {known}")

    def has_component(self, name: str) -> bool:
        """Whether there is a child called ``name``."""
        return any(child.name == name for child in self.components)

    def find_component(self, path: str) -> Component[Any]:
        """The descendant at ``path``, such as ``"block_3.ln_1"``; :class:`ConfigurationError` where there is none."""
        if not isinstance(path, str):
            raise ConfigurationError(f"{self.path}: expected the path of a child, such as 'block_0.ln_1', got {path!r}")
        component: Component[Any] = self
        for name in path.split("."):
            if not isinstance(component, CompositeComponent):
                raise ConfigurationError(f"{component.path}: has no children, looked for {path!r}")
            component = component.get_component(name)
        return component

    def __getitem__(self, path: str) -> Component[Any]:
        return self.find_component(path)
