"""Whatever resolves is built in exactly the bytes that it planned, and runs; nothing else is raised but one error."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mila
from mila import BuildContext, DefinedNetwork, Layout, RuntimeMode
from mila.errors import ShapeError
from mila.network_language import BUILT_IN
from tests.network_language.building import (
    BOTH_MODES,
    batch_of,
    built,
    context,
    input_shapes,
    inputs_of,
    output_shapes,
    outputs_of,
)
from tests.network_language.programs import ELEMENTWISE, programs, steps, valid_programs
from tests.promises.gradient_check import as_tuple, output_weights

#: What a valid program is built in; in float16 its values may overflow.
DTYPES = st.sampled_from([{}, {"compute_dtype": "float64"}, {"dtype": "bfloat16"}, {"dtype": "float16"}])


def network(arguments: dict[str, Any]) -> DefinedNetwork:
    return mila.network(**arguments, device="cpu", seed=1)


def hold_what_was_planned(arguments: dict[str, Any]) -> None:
    for mode in BOTH_MODES:
        made = network(arguments)
        build_context = context(made, mode)
        plan = made.plan(build_context)
        made.build(build_context)
        assert made.get_memory_stats() == plan.stats
        assert plan.stats.total_bytes <= plan.reserved_bytes


def run(made: DefinedNetwork, *, finite: bool) -> None:
    """Train once at the built batch and at one row less, and refuse what is shorter."""
    batch = batch_of(made.resolved, free=3)
    made.build(context(made, RuntimeMode.TRAINING, batch))
    for rows in {batch, batch_of(made.resolved, free=2)}:
        inputs = inputs_of(made, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = [array.copy() for array in as_tuple(made.forward(*inputs))]
            gradients = as_tuple(made.backward(*inputs, *output_weights(outputs)))
        assert [array.shape for array in outputs] == output_shapes(made.resolved, rows)
        assert [array.shape for array in gradients] == [array.shape for array in inputs]
        for array in (*outputs, *gradients, *(g for g in made.get_gradients() if g is not None)):
            assert not finite or np.isfinite(array).all()
    refuse_other_shapes(made, batch)


def refuse_other_shapes(made: DefinedNetwork, batch: int) -> None:
    """A larger batch, and an axis that is shorter than the contract, in a run or in a build."""
    inputs = inputs_of(made, batch)
    wrong = [[np.concatenate([array, array]) for array in inputs]]
    if inputs[0].shape[1] > 1:
        wrong.append([inputs[0][:, :-1].copy(), *inputs[1:]])
        shapes = {**input_shapes(made.resolved, batch), made.ports[0].name: wrong[-1][0].shape}
        with pytest.raises(ShapeError, match=r"expected .* got "):
            made.plan(BuildContext(shapes, RuntimeMode.TRAINING))
    for arrays in wrong:
        with pytest.raises(ShapeError):
            made.forward(*arrays)


def same_in_every_layout(arguments: dict[str, Any]) -> None:
    """No buffer is read after its bytes may have been given to another one."""
    found = []
    for layout in Layout:
        made = built(network(arguments), RuntimeMode.TRAINING, layout=layout)
        inputs = inputs_of(made)
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = outputs_of(made, *inputs)
            gradients = as_tuple(made.backward(*inputs, *output_weights(outputs)))
        parameters = [gradient for gradient in made.get_gradients() if gradient is not None]
        found.append([array.tobytes() for array in (*outputs, *gradients, *parameters)])
    assert found[0] == found[1]


@settings(max_examples=60)
@given(valid_programs(), DTYPES)
def test_valid_programs(program: tuple[dict[str, Any], Any], dtype: dict[str, str]) -> None:
    arguments = {**program[0], **dtype}
    hold_what_was_planned(arguments)
    same_in_every_layout(arguments)
    run(network(arguments), finite=dtype.get("dtype") != "float16")


def test_random_programs() -> None:
    """They are wrong, or they are networks."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(programs())
    def check(arguments: dict[str, Any]) -> None:
        try:
            made = network(arguments)
        except mila.NetworkError as error:
            outcomes[error.code] += 1
            return
        outcomes["built"] += 1
        hold_what_was_planned(arguments)
        run(made, finite=False)

    check()
    assert outcomes["built"] > 10


def test_valid_programs_may_hold_every_operator() -> None:
    texts = [*steps((5,), None), *steps((5, 4), 5), *steps((2, 3, 4), None), *ELEMENTWISE, "embedding("]
    assert {name for text in texts for name in re.findall(r"(\w+)\(", text)} == {*BUILT_IN}
