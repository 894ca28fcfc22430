"""Mila: transformers that know their bytes.

Construct a network (nothing is allocated), ask what a build would take, build it once, and run in exactly those bytes.

Names are loaded when they are first asked for: the command line has to set what NumPy's libraries read when they are
loaded, and it is a part of this package. For the same reason this file imports nothing itself: until the command line
is there, Ctrl-C ends in a traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mila.core import BuildContext as BuildContext
    from mila.core import Component as Component
    from mila.core import ComponentConfig as ComponentConfig
    from mila.core import ComponentType as ComponentType
    from mila.core import CompositeComponent as CompositeComponent
    from mila.core import Graph as Graph
    from mila.core import Layout as Layout
    from mila.core import LoadReport as LoadReport
    from mila.core import Network as Network
    from mila.core import Port as Port
    from mila.core import Position as Position
    from mila.core import Reference as Reference
    from mila.core import RuntimeMode as RuntimeMode
    from mila.core import TrainingMode as TrainingMode
    from mila.core import TrainingStep as TrainingStep
    from mila.devices import DeviceId as DeviceId
    from mila.devices import DeviceType as DeviceType
    from mila.devices import ExecutionContext as ExecutionContext
    from mila.errors import NetworkError as NetworkError
    from mila.memory import MemoryPlan as MemoryPlan
    from mila.memory import MemoryStats as MemoryStats
    from mila.memory import format_bytes as format_bytes
    from mila.memory import storage_bytes as storage_bytes
    from mila.models import from_pretrained as from_pretrained
    from mila.models import load_weights as load_weights
    from mila.network_language import DefinedNetwork as DefinedNetwork
    from mila.network_language import ResolvedNetwork as ResolvedNetwork
    from mila.network_language import network as network
    from mila.network_language import resolve as resolve

__version__ = "0.1.0"

#: Where the public names live.
_HOMES = {
    "mila.core": (
        "BuildContext",
        "Component",
        "ComponentConfig",
        "ComponentType",
        "CompositeComponent",
        "Graph",
        "Layout",
        "LoadReport",
        "Network",
        "Port",
        "Position",
        "Reference",
        "RuntimeMode",
        "TrainingMode",
        "TrainingStep",
    ),
    "mila.devices": ("DeviceId", "DeviceType", "ExecutionContext"),
    "mila.errors": ("NetworkError",),
    "mila.memory": ("MemoryPlan", "MemoryStats", "format_bytes", "storage_bytes"),
    "mila.models": ("from_pretrained", "load_weights"),
    "mila.network_language": ("DefinedNetwork", "ResolvedNetwork", "network", "resolve"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
