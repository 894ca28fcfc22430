"""Small graphs that no library component has: fan-out, several outputs, outputs that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

from mila.components import (
    Activation,
    Dropout,
    DropoutConfig,
    LayerNorm,
    LayerNormConfig,
    Linear,
    LinearConfig,
    Residual,
    Swiglu,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from mila.core import Component, ComponentConfig, CompositeComponent, Graph, LeafContext, Port, Reference, Run
from mila.memory.declarations import Declaration, gradient, output
from tests.promises.case import Array, Case, constructor

WIDTH = 6


class EmptyConfig(ComponentConfig):
    """Nothing to say."""


EMPTY = EmptyConfig()


class Split(Component[EmptyConfig]):
    """(…, C) to twice its halves."""

    config_class = EmptyConfig
    output_names = ("left", "right")
    required_kernels = ("take_section", "put_section", "scale")

    def output_shapes(self, context: LeafContext) -> tuple[tuple[int, ...], ...]:
        shape = (*context.input_shape[:-1], context.input_shape[-1] // 2)
        return shape, shape

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        for port, (name, shape) in enumerate(zip(self.output_names, self.output_shapes(context), strict=True)):
            yield output(shape, context.dtype, name=name, port=port)
        if context.is_training:
            yield gradient("input", context.input_shape, context.dtype)

    def forward_step(self, run: Run, *inputs: Array) -> tuple[Array, ...]:
        (x,) = inputs
        half = x.shape[-1] // 2
        halves = tuple(self.view(name, (*x.shape[:-1], half)) for name in self.output_names)
        for index, section in enumerate(halves):
            self.kernels.take_section(section, x, x.ndim - 1, index * half)
            self.kernels.scale(section, section, 2.0)
        return halves

    def backward_step(
        self, run: Run, inputs: tuple[Array, ...], gradients: tuple[Array, ...]
    ) -> tuple[Array | None, ...]:
        dx = self.view("input.gradient", inputs[0].shape)
        for index, section in enumerate(gradients):
            self.kernels.put_section(dx, section, dx.ndim - 1, index * (dx.shape[-1] // 2))
        self.kernels.scale(dx, dx, 2.0)
        return (dx,)


def linear(name: str, width: int = WIDTH, out: int | None = None) -> Linear:
    return Linear(name, LinearConfig(in_features=width, out_features=out or width))


def norm(name: str, width: int = WIDTH) -> LayerNorm:
    return LayerNorm(name, LayerNormConfig(normalized_dim=width))


class Diamond(CompositeComponent[EmptyConfig]):
    """One value with four readers, two of them the same component."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(norm("norm"), *inputs)
        a = graph.add(Activation("a"), h)
        b = graph.add(linear("b"), h)
        doubled = graph.add(Residual("doubled"), h, h)
        h = graph.add(Residual("sum"), graph.add(Residual("ab"), a, b), doubled)
        return graph.add(Residual("with_input"), h, *inputs)


class TwoInputsTwoOutputs(CompositeComponent[EmptyConfig]):
    """An output that is read inside too, another that is not, and an input with two readers."""

    config_class = EmptyConfig
    ports = (Port("first"), Port("second"))
    output_names = ("early", "late")

    def compose(self, graph: Graph, *inputs: Reference) -> tuple[Reference, ...]:
        first, second = inputs
        early = graph.add(linear("early"), graph.add(Residual("sum"), first, second))
        late = graph.add(Residual("late"), graph.add(Activation("activation"), early), second)
        return early, late


class UnusedOutput(CompositeComponent[EmptyConfig]):
    """Half of what a split makes goes nowhere, and so does a whole branch."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        left, _ = graph.add_many(Split("split"), graph.add(linear("first"), *inputs))
        graph.add(norm("nowhere", WIDTH // 2), left)
        return graph.add(linear("last", WIDTH // 2), left)


class UnusedInput(CompositeComponent[EmptyConfig]):
    """Nobody reads the second input; a whole child is absent in inference."""

    config_class = EmptyConfig
    ports = (Port("first"), Port("second"))

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(linear("first"), inputs[0])
        h = graph.add(Dropout("dropout", DropoutConfig(probability=0.5)), h)
        return graph.add(Activation("last"), h)


class GateWithReaders(CompositeComponent[EmptyConfig]):
    """A gate whose input others read before it, and after it."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(linear("up", WIDTH, 2 * WIDTH), *inputs)
        before = graph.add(linear("before", 2 * WIDTH, WIDTH), h)
        gated = graph.add(Swiglu("gate"), h)
        after = graph.add(linear("after", 2 * WIDTH, WIDTH), h)
        return graph.add(Residual("all"), graph.add(Residual("two"), before, gated), after)


class TiedTwice(CompositeComponent[EmptyConfig]):
    """One table that embeds, and is the weight of two heads, one after the other."""

    config_class = EmptyConfig
    ports = (Port("ids", is_ids=True),)

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        config = TokenEmbeddingConfig(vocab_size=WIDTH, embedding_dim=WIDTH)
        embedding = TokenEmbedding("embedding", config)
        h = graph.add(embedding, *inputs)
        head = LinearConfig(in_features=WIDTH, out_features=WIDTH)
        h = graph.add(Linear("head_1", head, tied_to=embedding), h)
        return graph.add(Linear("head_2", head, tied_to=embedding), h)


def structure(component_class: type[Component[EmptyConfig]], shapes: dict[str, tuple[int, ...]], **limits: int) -> Case:
    return Case(component_class.__name__, constructor(component_class, EMPTY), (EMPTY,), shapes, limits=limits)


STRUCTURES: list[Case] = [
    structure(Split, {"input": (3, 5, WIDTH)}),
    structure(Diamond, {"input": (3, 5, WIDTH)}),
    structure(TwoInputsTwoOutputs, {"first": (2, 3, WIDTH), "second": (2, 3, WIDTH)}),
    structure(UnusedOutput, {"input": (2, 3, WIDTH)}),
    structure(UnusedInput, {"first": (2, 3, WIDTH), "second": (2, 3, WIDTH)}),
    structure(GateWithReaders, {"input": (2, 3, WIDTH)}),
    structure(TiedTwice, {"ids": (2, 5)}, ids=WIDTH),
]
