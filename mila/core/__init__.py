"""Core: components, graphs, schedules, and the life of a network."""

from mila.core.component import Component
from mila.core.composite import CompositeComponent
from mila.core.config import ComponentConfig, ParameterizedConfig
from mila.core.context import BuildContext, Layout, LeafContext, Overwrite
from mila.core.graph import Graph, Port, Reference
from mila.core.loading import LoadReport
from mila.core.modes import ComponentType, RuntimeMode, TrainingMode
from mila.core.network import Network
from mila.core.planned_build import Optimizer
from mila.core.run import Position, Run
from mila.core.state import TensorSavePass
from mila.core.training_step import TrainingStep

__all__ = [
    "BuildContext",
    "Component",
    "ComponentConfig",
    "ComponentType",
    "CompositeComponent",
    "Graph",
    "Layout",
    "LeafContext",
    "LoadReport",
    "Network",
    "Optimizer",
    "Overwrite",
    "ParameterizedConfig",
    "Port",
    "Position",
    "Reference",
    "Run",
    "RuntimeMode",
    "TensorSavePass",
    "TrainingMode",
    "TrainingStep",
]
