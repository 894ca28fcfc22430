"""A token of decoding runs bound steps: they give what the components' own steps give."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import mila.components
from mila.components import Activation, ActivationConfig
from mila.core import (
    BuildContext,
    Component,
    ComponentConfig,
    CompositeComponent,
    Graph,
    Position,
    Reference,
    RuntimeMode,
)
from mila.errors import MilaError
from mila.models import GptConfig, GptTransformer
from tests.promises.case import Array, Case
from tests.promises.leaf_cases import LEAF_CASES

BINDING = sorted(
    (
        kind
        for kind in vars(mila.components).values()
        if isinstance(kind, type) and issubclass(kind, Component) and kind.bind_step is not Component.bind_step
    ),
    key=lambda kind: kind.__name__,
)


class Behind(CompositeComponent[ComponentConfig]):
    """A leaf that reads a value of the graph, and so is bound; its input is the root's."""

    config_class = ComponentConfig

    def __init__(self, leaf: Component[Any], dtype: str) -> None:
        self._leaf = leaf
        super().__init__("root", ComponentConfig(), device="cpu", dtype=dtype)

    def compose(self, graph: Graph, *inputs: Reference) -> Any:
        h = graph.add(Activation("first", ActivationConfig(kind="tanh")), *inputs)
        return graph.add(self._leaf, *[h] * len(self._leaf.ports))


def built(case: Case, dtype: str) -> Behind | None:
    """The case's leaf behind another, built for eight positions of one row; ``None`` where it has no such form."""
    leaf = case.construct(dtype=None)
    width = case.shapes[-1] if isinstance(case.shapes, tuple) else next(iter(case.shapes.values()))[-1]
    root = Behind(leaf, dtype)
    try:
        root.build(BuildContext((1, 8, width), RuntimeMode.INFERENCE, initialize_parameters=True))
    except MilaError:
        return None
    case.prepare(leaf)
    rng = np.random.default_rng(1)
    for name, parameter in zip(root.get_parameter_names(), root.get_parameters(), strict=True):
        if "scale" not in name:
            parameter[...] = rng.standard_normal(parameter.shape)
    return root


def token(root: Behind, seed: int) -> Array:
    context = root.build_context
    assert context is not None
    return np.random.default_rng(seed).standard_normal((1, 1, context.input_shapes["input"][-1])).astype(root.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", BINDING, ids=lambda kind: kind.__name__)
def test_bound_steps_compute_what_the_components_do(
    kind: type[Component[Any]], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerance = 2e-6 if dtype == "float32" else 1e-13
    compared = 0
    for case in LEAF_CASES:
        if not isinstance(case.construct(dtype=None), kind):
            continue
        root, again = built(case, dtype), built(case, dtype)
        if root is None or again is None:
            continue
        for start in range(3):
            root.forward(token(root, start), position=Position(start))  # the first of these binds
        x = token(root, 9)
        got = root.forward(x, position=Position(2)).copy()
        again.forward(np.concatenate([token(root, start) for start in range(2)], axis=1))
        expected = again.forward(x, position=Position(2))  # its first single position: not bound yet
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * max(1.0, float(np.abs(expected).max())))
        with monkeypatch.context() as patch:
            patch.setattr(root._leaf, "forward_step", None)
            if root._leaf.bind_step((x,) * len(root._leaf.ports), None) is not None:  # type: ignore[arg-type]
                np.testing.assert_array_equal(root.forward(x, position=Position(2)), got)
                compared += 1
    assert compared


def small_model() -> GptTransformer:
    config = GptConfig(vocab_size=11, embedding_dim=6, num_layers=2, num_heads=2, max_seq_len=9)
    model = GptTransformer("model", config, device="cpu")
    model.build(BuildContext((2, 9), RuntimeMode.INFERENCE, initialize_parameters=True, prefill_size=4))
    return model


def test_other_shapes_between_bound_tokens_change_nothing() -> None:
    model, other = small_model(), small_model()
    ids = np.array([[3, 1, 4, 1, 5, 9]])
    for position in range(3):
        model.forward(ids[:, position : position + 1], position=Position(position))
    model.forward(np.array([[3, 1], [2, 7]]))
    model.forward(ids[:, :4])
    expected = other.forward(ids[:, :4]).copy()
    np.testing.assert_allclose(model.forward(ids[:, 3:4], position=Position(3)), expected, rtol=1e-5, atol=1e-6)


def test_ids_are_checked_in_bound_steps_too() -> None:
    model = small_model()
    for _ in range(2):
        model.forward(np.array([[1]]))
    with pytest.raises(MilaError, match="id 11 at position"):
        model.forward(np.array([[11]]))


def test_loaded_weights_reach_bound_steps() -> None:
    model = small_model()
    ids = np.array([[1]])
    for _ in range(2):
        model.forward(ids)
    model.load_parameter("ln_f.weight", np.zeros(6, np.float32))
    model.load_parameter("ln_f.bias", np.zeros(6, np.float32))
    np.testing.assert_array_equal(model.forward(ids), np.zeros((1, 1, 11)))


def test_a_dropped_root_gives_its_memory_back_at_once() -> None:
    model = small_model()
    for _ in range(3):
        model.forward(np.array([[1]]))
    reference = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()
