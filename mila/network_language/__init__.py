"""The network definition language: text and contracts in, a network with every shape known out."""

from mila.errors import NetworkError as NetworkError
from mila.network_language.arguments import Argument as Argument
from mila.network_language.defined_network import DefinedNetwork as DefinedNetwork
from mila.network_language.defined_network import DefinedNetworkConfig as DefinedNetworkConfig
from mila.network_language.defined_network import network as network
from mila.network_language.operator import ComponentFactory as ComponentFactory
from mila.network_language.operator import Example as Example
from mila.network_language.operator import NodeShapes as NodeShapes
from mila.network_language.operator import Operator as Operator
from mila.network_language.operators import BUILT_IN as BUILT_IN
from mila.network_language.plan_reading import plan_from_json as plan_from_json
from mila.network_language.registry import Registry as Registry
from mila.network_language.relations import NodeView as NodeView
from mila.network_language.resolved import ExternalTensor as ExternalTensor
from mila.network_language.resolved import ResolvedNetwork as ResolvedNetwork
from mila.network_language.resolved import ResolvedNode as ResolvedNode
from mila.network_language.resolving import resolve as resolve
