"""Mila: transformers that know their bytes.

Construct a network (nothing is allocated), ask what a build would take, build it once, and run in exactly those bytes.
"""

from mila.core import (
    BuildContext,
    Component,
    ComponentConfig,
    ComponentType,
    CompositeComponent,
    Graph,
    Layout,
    LoadReport,
    Network,
    Port,
    Position,
    Reference,
    RuntimeMode,
    TrainingMode,
    TrainingStep,
)
from mila.devices import DeviceId, DeviceType, ExecutionContext
from mila.memory import MemoryPlan, MemoryStats, format_bytes, storage_bytes
from mila.models import from_pretrained, load_weights

__version__ = "0.1.0"

__all__ = [
    "BuildContext",
    "Component",
    "ComponentConfig",
    "ComponentType",
    "CompositeComponent",
    "DeviceId",
    "DeviceType",
    "ExecutionContext",
    "Graph",
    "Layout",
    "LoadReport",
    "MemoryPlan",
    "MemoryStats",
    "Network",
    "Port",
    "Position",
    "Reference",
    "RuntimeMode",
    "TrainingMode",
    "TrainingStep",
    "format_bytes",
    "from_pretrained",
    "load_weights",
    "storage_bytes",
]
