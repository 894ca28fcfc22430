"""What prints is safe in every state, and says what is there."""

from __future__ import annotations

from typing import Any

import pytest

from mila.components import SoftmaxCrossEntropy
from mila.core import Component, TrainingStep
from mila.training.adamw import AdamW
from tests.core.parts import WIDTH, chain, drawn, gpt, inference, llama, training


def states() -> dict[str, Component[Any]]:
    """Return components in every state of their lives."""
    found: dict[str, Component[Any]] = {"without device": chain(), "unbuilt": gpt(), "llama": llama()}
    found["training"] = gpt()
    found["training"].build(training(2, 5))
    found["inference"] = gpt()
    found["inference"].build(inference(2, 5))
    found["drawn"] = llama()
    found["drawn"].build(drawn(2, 5))
    failed = chain(device="cpu")
    failed.moody.fails.add("building")
    with pytest.raises(RuntimeError):
        failed.build(training(2, WIDTH))
    found["failed"] = failed
    found["step"] = TrainingStep(gpt(), SoftmaxCrossEntropy("loss"), AdamW())
    return found


@pytest.mark.parametrize("state", states())
def test_every_state_prints(state: str) -> None:
    component = states()[state]
    for part in component.walk():
        text = repr(part)
        assert type(part).__name__ in text
        assert repr(part.name) in text
        assert str(part)
        assert ("unbuilt" in text) is not part.is_built


def test_a_child_whose_root_is_gone_prints() -> None:
    child = gpt()["block_0"]
    assert "GptBlock('block_0'" in repr(child)
    leaf = gpt()["lm_head"]
    assert "Linear('lm_head'" in repr(leaf)


def test_a_network_prints_as_the_table_of_its_graph() -> None:
    table = str(gpt())
    lines = table.splitlines()
    assert lines[0] == "gpt: GptTransformer"
    (row,) = [line for line in lines if line.strip().startswith("residual_1") and "block" not in line][:1]
    assert row.split()[1] == "residual"
    assert "input, dropout_1" in row
    assert all(child.name in table for child in gpt().walk() if child.name != "gpt")
