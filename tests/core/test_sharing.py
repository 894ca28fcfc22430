"""One buffer is one object: tied tables, rotary tables, and what is told apart by name."""

from __future__ import annotations

import numpy as np
import pytest

from mila.components import Linear, LinearConfig, Rope, RopeConfig, TokenEmbedding, TokenEmbeddingConfig
from mila.core import ComponentConfig, CompositeComponent, Graph, Network, Port, Reference
from mila.errors import LifecycleError
from mila.models import GptTransformer
from tests.core.parts import SMALL_GPT, drawn, gpt, llama, training


def test_a_tied_head_is_counted_once() -> None:
    tied = gpt()
    untied = GptTransformer("gpt", SMALL_GPT.model_copy(update={"tie_word_embeddings": False}), device="cpu")
    table = 11 * 6
    assert untied.parameter_count() - tied.parameter_count() == table
    assert len(untied.get_parameter_names()) - len(tied.get_parameter_names()) == 1
    assert "lm_head.weight" not in tied.get_parameter_names()
    for context in (training(2, 5), drawn(2, 5)):
        difference = (
            untied.get_required_memory(context).device_parameter_bytes
            - tied.get_required_memory(context).device_parameter_bytes
        )
        assert difference == 4 * table


def test_a_tied_head_computes_with_the_table_and_adds_to_its_gradient() -> None:
    model = gpt(dtype="float64")
    model.build(training(2, 5))
    ids = np.array([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], np.int32)
    embedding = model["embedding"]
    assert isinstance(embedding, TokenEmbedding)
    before = model.forward(ids).copy()
    embedding.get_weight_tensor_shared()[10] += 1
    assert not np.array_equal(model.forward(ids)[..., 10], before[..., 10])
    model.backward(ids, np.ones((2, 5, 11)))
    gradient = embedding.get_wte_grad()
    assert gradient is not None
    assert gradient[10].any(), "id 10 is nowhere in the input: only the head gives it a gradient"


def test_rotary_tables_are_shared_by_all_layers() -> None:
    plan = llama().plan(training(2, 5))
    assert [b.path for b in plan.buffers if b.name in ("cosine", "sine")] == ["llama.block_0.rope"] * 2


class TwoTables(CompositeComponent[ComponentConfig]):
    """Rotary positions of two kinds, one of them twice."""

    config_class = ComponentConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        (h,) = inputs
        for name, theta in (("first", 100.0), ("second", 10.0), ("third", 100.0)):
            config = RopeConfig(num_heads=1, num_kv_heads=1, head_dim=2, theta=theta, max_seq_len=9)
            h = graph.add(Rope(name, config), h)
        return h


def test_tables_of_other_contents_are_not_shared() -> None:
    component = TwoTables("tables", ComponentConfig(), device="cpu", dtype="float64")
    plan = component.plan(training(2, 5, 6))
    assert [b.path for b in plan.buffers if b.name == "sine"] == ["tables.first", "tables.second"]
    component.build(training(2, 5, 6))
    x = np.random.default_rng(0).standard_normal((2, 5, 6))
    expected = x
    for theta in (100.0, 10.0, 100.0):
        config = RopeConfig(num_heads=1, num_kv_heads=1, head_dim=2, theta=theta, max_seq_len=9)
        alone = Rope("alone", config, device="cpu", dtype="float64")
        alone.build(training(2, 5, 6))
        expected = alone.forward(expected).copy()
    assert np.allclose(component.forward(x), expected, rtol=1e-12)


class Head(Network[ComponentConfig]):
    """An embedding, and a head whose weight is given to it after the build."""

    config_class = ComponentConfig
    ports = (Port("ids", is_ids=True),)

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(TokenEmbedding("wte", TokenEmbeddingConfig(vocab_size=5, embedding_dim=4)), *inputs)
        head = LinearConfig(in_features=4, out_features=5, bias=False, shared_weight=True)
        return graph.add(Linear("head", head), h)


def test_an_installed_weight_of_a_child_is_not_counted() -> None:
    network = Head("network", ComponentConfig(), device="cpu")
    assert network.parameter_count() == 20
    network.build(drawn(1, 3))
    ids = np.array([[0, 3, 4]], np.int32)
    with pytest.raises(LifecycleError, match=r"network.head: has no weight yet; call install_shared_weight"):
        network.forward(ids)
    embedding, head = network["wte"], network["head"]
    assert isinstance(embedding, TokenEmbedding)
    assert isinstance(head, Linear)
    head.install_shared_weight(embedding.get_weight_tensor_shared())
    table = embedding.get_weight_tensor_shared()
    assert np.allclose(network.forward(ids), table[ids] @ table.T, rtol=1e-6)
    assert network.get_memory_stats() == network.get_required_memory(drawn(1, 3))
