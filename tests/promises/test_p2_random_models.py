"""P2 over random models, shapes and build options, which no list of cases would name."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from mila.components import SoftmaxCrossEntropy
from mila.components.activation import ActivationKind
from mila.core import BuildContext, Component, Layout, TrainingStep
from mila.devices import ExecutionContext
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.training.adamw import AdamW, AdamWConfig
from tests.promises.case import INFERENCE, TRAINING

LONGEST = 13
DEVICE = ExecutionContext("cpu", threads=2)


@st.composite
def gpt_models(draw: st.DrawFn) -> Component[Any]:
    heads, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    config = GptConfig(
        vocab_size=draw(st.integers(1, 40)),
        embedding_dim=heads * head_dim,
        num_layers=draw(st.integers(0, 3)),
        num_heads=heads,
        max_seq_len=LONGEST,
        tie_word_embeddings=draw(st.booleans()),
        hidden_dim=draw(st.none() | st.integers(1, 23)),
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(get_args(ActivationKind))),
        dropout=draw(st.sampled_from([0.0, 0.2])),
        trainable=draw(st.booleans()),
    )
    return GptTransformer("gpt", config, dtype=draw(st.sampled_from(["float32", "float64"])))


@st.composite
def llama_models(draw: st.DrawFn) -> Component[Any]:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    config = LlamaConfig(
        vocab_size=draw(st.integers(1, 40)),
        embedding_dim=draw(st.integers(1, 17)),
        num_layers=draw(st.integers(0, 3)),
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 3)),
        max_seq_len=LONGEST,
        tie_word_embeddings=draw(st.booleans()),
        hidden_dim=draw(st.integers(1, 23)),
        sliding_window=draw(st.none() | st.integers(1, LONGEST)),
        trainable=draw(st.booleans()),
    )
    return LlamaTransformer("llama", config, dtype=draw(st.sampled_from(["float32", "float64"])))


@st.composite
def builds(draw: st.DrawFn) -> tuple[Component[Any], BuildContext]:
    model = draw(gpt_models() | llama_models())
    shape = draw(st.integers(1, 5)), draw(st.integers(1, LONGEST))
    options: dict[str, Any] = {
        "max_seq_len": draw(st.none() | st.integers(shape[1], LONGEST)),
        "all_logits": draw(st.booleans()),
        "layout": draw(st.sampled_from(Layout)),
    }
    if draw(st.booleans()):
        prefill_size = draw(st.none() | st.integers(1, shape[1]))
        return model, BuildContext(shape, INFERENCE, prefill_size=prefill_size, **options)
    if draw(st.booleans()):
        optimizer = AdamW(AdamWConfig(maximum_norm=draw(st.none() | st.just(1.0))))
        model = TrainingStep(model, SoftmaxCrossEntropy("loss"), optimizer)
    return model, BuildContext(shape, TRAINING, **options)


@settings(max_examples=150)
@given(builds())
def test_required_memory_is_what_is_held(build: tuple[Component[Any], BuildContext]) -> None:
    model, context = build
    without_device = model.plan(context)
    model.set_execution_context(DEVICE)
    plan = model.plan(context)
    model.build(context)
    assert model.get_memory_stats() == plan.stats
    assert plan.stats.total_bytes <= plan.reserved_bytes
    assert without_device.stats.device_parameter_bytes == plan.stats.device_parameter_bytes
