"""P9: wrong declarations are caught, whatever it is that they forget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from mila.components import (
    Activation,
    ActivationConfig,
    Attention,
    AttentionConfig,
    LayerNorm,
    LayerNormConfig,
    Linear,
    LinearConfig,
    Residual,
    RmsNorm,
    RmsNormConfig,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyConfig,
    Swiglu,
    SwigluConfig,
)
from mila.core import Component, CompositeComponent, Graph, Layout, LeafContext, Reference, TrainingStep
from mila.devices import ExecutionContext
from mila.errors import MilaError
from mila.memory import Declaration, Lifetime, Over
from mila.models import GptConfig, GptTransformer
from mila.training.adamw import AdamW
from tests.promises.case import TRAINING, Case, constructor
from tests.promises.composite_cases import GPT
from tests.promises.running import differences, everything
from tests.promises.structures import EMPTY, WIDTH, EmptyConfig, linear


def redeclared(component_class: type[Component[Any]], buffer: str, **changes: Any) -> type[Component[Any]]:
    """Return a subclass that declares one of its buffers wrongly."""

    class Planted(component_class):  # type: ignore[valid-type,misc]
        def declare(self, context: LeafContext) -> Iterator[Declaration]:
            for declaration in super().declare(context):
                yield replace(declaration, **changes) if declaration.name == buffer else declaration

    return Planted


def forgetful(component_class: type[Component[Any]], *reads: str) -> type[Component[Any]]:
    """Return a subclass that declares to read less in backward than it does."""
    return type("Planted", (component_class,), {"reads": reads})


class Sandwich(CompositeComponent[EmptyConfig]):
    """A planted component between projections, so that what it reads and makes has a producer and readers."""

    config_class = EmptyConfig
    inner: ClassVar[tuple[type[Component[Any]], Any, int]]
    reads_twice: ClassVar[bool] = False

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        component_class, config, factor = self.inner
        before = graph.add(linear("before", WIDTH, WIDTH * factor), *inputs)
        h = graph.add(component_class("planted", config), before)
        if self.reads_twice:
            h = graph.add(Residual("again"), h, before)
        h = graph.add(linear("after", WIDTH), h)
        return graph.add(linear("last"), graph.add(linear("more"), h))


def sandwich(component_class: type[Component[Any]], config: Any, factor: int = 1, *, reads_twice: bool = False) -> Case:
    holder = type("Planted", (Sandwich,), {"inner": (component_class, config, factor), "reads_twice": reads_twice})
    return Case(component_class.__name__, constructor(holder, EMPTY), (EMPTY,), (2, 5, WIDTH))


NORM = LayerNormConfig(normalized_dim=WIDTH)
ROOT_MEAN_SQUARE = RmsNormConfig(normalized_dim=WIDTH)
PROJECTION = LinearConfig(in_features=WIDTH, out_features=WIDTH)
#: (H + 2 K) D = 3 WIDTH wide, H D = WIDTH: the input of a sandwich three times as wide.
HEADS = AttentionConfig(num_heads=3, num_kv_heads=3, head_dim=WIDTH // 3)

PLANTED: dict[str, Case] = {
    "LayerNorm does not say that it reads its input": sandwich(forgetful(LayerNorm), NORM),
    "RmsNorm does not say that it reads its input": sandwich(forgetful(RmsNorm), ROOT_MEAN_SQUARE),
    "Linear does not say that it reads its input": sandwich(forgetful(Linear), PROJECTION),
    "Softmax does not say that it reads its output": sandwich(forgetful(Softmax), None),
    "Activation does not say that its derivative lies over its input": sandwich(forgetful(Activation), None),
    "Attention does not say that it reads its input": sandwich(forgetful(Attention, "output"), HEADS, 3),
    "Attention does not say that it reads its output": sandwich(forgetful(Attention, "input"), HEADS, 3),
    "LayerNorm's statistics are scratch of forward": sandwich(
        redeclared(LayerNorm, "rstd", lifetime=Lifetime.FORWARD), NORM
    ),
    "LayerNorm's statistics are scratch of both steps": sandwich(
        redeclared(LayerNorm, "mean", lifetime=Lifetime.BOTH), NORM
    ),
    "Attention's statistics are scratch of both steps": sandwich(
        redeclared(Attention, "log_sum_exp", lifetime=Lifetime.BOTH), HEADS, 3
    ),
    "a derivative is scratch of forward": sandwich(
        redeclared(Activation, "derivative", lifetime=Lifetime.FORWARD), ActivationConfig(), reads_twice=True
    ),
    "Activation writes over an input that a residual reads after it": sandwich(
        redeclared(Activation, "output", over=Over.INPUT, over_port=0), None, reads_twice=True
    ),
    "LayerNorm writes its output over an input that backward reads": sandwich(
        redeclared(LayerNorm, "output", over=Over.INPUT, over_port=0), NORM
    ),
    "Linear writes its input's gradient over the input that it still multiplies with": sandwich(
        redeclared(Linear, "input.gradient", over=Over.INPUT, over_port=0), PROJECTION
    ),
    "Linear writes its input's gradient over the output's gradient": sandwich(
        redeclared(Linear, "input.gradient", over=Over.GRADIENT, over_port=0), PROJECTION
    ),
}


def is_caught(case: Case, device: ExecutionContext) -> bool:
    """Say whether the suite notices: an error, a value that is not finite, or other bits than the real layout's."""
    try:
        shared, poisoned = (
            everything(case, case.build(device, TRAINING, "float64", layout=layout), TRAINING)
            for layout in (Layout.SHARED, Layout.POISONED)
        )
    except MilaError:
        return True
    return differences(shared, poisoned) != []


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED.keys())
def test_a_wrong_declaration_is_caught(case: Case, device: ExecutionContext) -> None:
    assert is_caught(case, device)


@pytest.mark.parametrize(
    ("component_class", "config", "factor"),
    [
        (LayerNorm, NORM, 1),
        (RmsNorm, ROOT_MEAN_SQUARE, 1),
        (Linear, PROJECTION, 1),
        (Softmax, None, 1),
        (Swiglu, SwigluConfig(), 2),
        (Activation, None, 1),
        (Attention, HEADS, 3),
    ],
)
@pytest.mark.parametrize("reads_twice", [False, True])
def test_right_declarations_are_not_caught(
    component_class: type[Component[Any]], config: Any, factor: int, reads_twice: bool, device: ExecutionContext
) -> None:
    case = sandwich(component_class, config, factor, reads_twice=reads_twice and factor == 1)
    assert not is_caught(case, device)


def test_a_wrong_declaration_of_the_loss_is_caught(device: ExecutionContext) -> None:
    planted = redeclared(SoftmaxCrossEntropy, "log_sum_exp", lifetime=Lifetime.FORWARD)

    def construct(dtype: str, seed: int) -> Component[Any]:
        network = GptTransformer("network", GptConfig(**GPT), dtype=dtype, seed=seed)
        return TrainingStep(network, planted("loss", SoftmaxCrossEntropyConfig()), AdamW())

    limits = {"ids": GPT["vocab_size"], "targets": GPT["vocab_size"]}
    assert is_caught(Case("planted", construct, (), (2, 5), limits=limits), device)
