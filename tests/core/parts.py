"""Small components for tests of the lifecycle, some of which fail where they are told to."""

from __future__ import annotations

from typing import Any, ClassVar

from mila.components import Activation, LayerNorm, LayerNormConfig, Linear, LinearConfig
from mila.core import BuildContext, ComponentConfig, CompositeComponent, Graph, Reference, RuntimeMode, TrainingMode
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer

INFERENCE, TRAINING = RuntimeMode.INFERENCE, RuntimeMode.TRAINING
WIDTH = 6
SMALL_GPT = GptConfig(vocab_size=11, embedding_dim=6, num_layers=2, num_heads=3, max_seq_len=16)
SMALL_LLAMA = LlamaConfig(vocab_size=11, embedding_dim=8, num_layers=2, num_heads=4, hidden_dim=10, max_seq_len=16)


def gpt(name: str = "gpt", **arguments: Any) -> GptTransformer:
    return GptTransformer(name, SMALL_GPT, device="cpu", **arguments)


def llama(name: str = "llama", **arguments: Any) -> LlamaTransformer:
    return LlamaTransformer(name, SMALL_LLAMA, device="cpu", **arguments)


class EmptyConfig(ComponentConfig):
    """Nothing to say."""


class DeliberateError(RuntimeError):
    """What a hook of :class:`Moody` raises."""


class Moody(Activation):
    """Counts the calls of its hooks; each fails while it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.fails: set[str] = set()
        self.calls: list[str] = []

    def _called(self, hook: str) -> None:
        self.calls.append(hook)
        if hook in self.fails:
            raise DeliberateError(f"{self.path}: {hook}")

    def on_execution_context_set(self) -> None:
        self._called("context")

    def on_building(self, context: BuildContext) -> None:
        assert not self.is_built
        self._called("building")

    def on_training_mode_changing(self, mode: TrainingMode) -> None:
        assert self.training_mode is not mode
        self._called(f"to {mode.value}")


class Chain(CompositeComponent[EmptyConfig]):
    """Norm, projection, then a moody third child."""

    config_class = EmptyConfig
    children: ClassVar[int] = 4

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        self.moody = Moody("third")
        h = graph.add(LayerNorm("first", LayerNormConfig(normalized_dim=WIDTH)), *inputs)
        h = graph.add(Linear("second", LinearConfig(in_features=WIDTH, out_features=WIDTH)), h)
        h = graph.add(self.moody, h)
        return graph.add(Linear("fourth", LinearConfig(in_features=WIDTH, out_features=WIDTH)), h)


def chain(**arguments: Any) -> Chain:
    return Chain("chain", EmptyConfig(), **arguments)


def training(*shape: int, **options: Any) -> BuildContext:
    return BuildContext(shape, TRAINING, **options)


def inference(*shape: int, **options: Any) -> BuildContext:
    return BuildContext(shape, INFERENCE, **options)


def drawn(*shape: int, **options: Any) -> BuildContext:
    """Return a context for inference with parameters drawn as in training."""
    return BuildContext(shape, INFERENCE, initialize_parameters=True, **options)
