"""Networks: composites that are meant to be roots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mila.core.component import Component, ConfigT
from mila.core.composite import CompositeComponent
from mila.core.loading import LoadReport, load_tensors
from mila.core.modes import ComponentType
from mila.core.state import TensorSavePass, save_flat_tensors
from mila.memory.format import format_table
from mila.serialization import SafetensorsWriter, open_tensors


class Network(CompositeComponent[ConfigT]):
    """A whole model: prints as the table of its graph, and reads and writes its weights."""

    component_type = ComponentType.NETWORK

    def save_weights(self, path: str | Path) -> None:
        """Write all parameters to one safetensors file, atomically."""
        with SafetensorsWriter(path) as writer:
            save_flat_tensors(self, writer, "", TensorSavePass.DECLARE)
            writer.begin()
            save_flat_tensors(self, writer, "", TensorSavePass.WRITE)

    def load_weights(self, path: str | Path) -> LoadReport:
        """Read all parameters from a safetensors file, a sharded folder or an index; strict.

        Raises:
            CheckpointError: malformed file, or names, shapes and dtypes that do not fit; nothing was changed.
        """
        with open_tensors(path) as source:
            return load_tensors(self, source)

    def __str__(self) -> str:
        header = ("component", "type", "reads", "parameters")
        return f"{self.name}: {type(self).__name__}\n" + format_table(header, list(_graph_rows(self)), right=(3,))


def _graph_rows(composite: CompositeComponent[Any], depth: int = 0) -> Iterator[tuple[str, str, str, str]]:
    if composite.graph is None:
        return
    names = {i: port.name for i, port in enumerate(composite.ports)}
    for node in composite.graph.nodes:
        child: Component[Any] = node.child
        reads = ", ".join(names[value] for value in node.inputs)
        yield "  " * depth + child.name, child.component_type.value, reads, f"{child.parameter_count():,}"
        if isinstance(child, CompositeComponent):
            yield from _graph_rows(child, depth + 1)
        for output, value in zip(child.output_names, node.outputs, strict=True):
            names[value] = child.name if len(node.outputs) == 1 else f"{child.name}.{output}"
