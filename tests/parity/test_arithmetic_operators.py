"""Components that compute, gather and pool give what PyTorch gives, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from mila.components import (
    Add,
    AddConfig,
    BroadcastAdd,
    BroadcastAddConfig,
    Clamp,
    ClampConfig,
    ClsToken,
    ClsTokenConfig,
    GatherToken,
    GatherTokenConfig,
    LearnedScale,
    LearnedScaleConfig,
    MatrixProduct,
    MatrixProductConfig,
    Multiply,
    MultiplyConfig,
    PoolTokens,
    PoolTokensConfig,
    Scale,
    ScaleConfig,
    Subtract,
    SubtractConfig,
)
from mila.core import BuildContext, Component, RuntimeMode

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

TOLERANCE = {"float32": 2e-6, "float64": 1e-14}
Shape = tuple[int, ...]
#: Of the inputs and then the parameters.
Formula = Callable[..., Any]


def gather(x: Any, ids: Any) -> Any:
    return x[torch.arange(len(ids)), ids.argmax(1)]


CASES: list[tuple[type[Component[Any]], BaseModel, tuple[Shape, ...], Formula]] = [
    (GatherToken, GatherTokenConfig(), ((4, 64, 48), (4, 64)), gather),
    (GatherToken, GatherTokenConfig(), ((3, 1, 5), (3, 1)), gather),
    (
        ClsToken,
        ClsTokenConfig(embedding_dim=5),
        ((4, 3, 5),),
        lambda x, t: torch.cat([t.expand(len(x), -1, -1), x], 1),
    ),
    (PoolTokens, PoolTokensConfig(), ((3, 7, 5),), lambda x: x.mean(1)),
    (PoolTokens, PoolTokensConfig(mode="first"), ((3, 7, 5),), lambda x: x[:, 0]),
    (PoolTokens, PoolTokensConfig(mode="last"), ((3, 7, 5),), lambda x: x[:, -1]),
    (PoolTokens, PoolTokensConfig(mode="max"), ((3, 7, 5),), lambda x: x.max(1).values),
    (Add, AddConfig(), ((3, 7, 5), (3, 7, 5)), torch.add),
    (Subtract, SubtractConfig(), ((3, 7), (3, 7)), torch.sub),
    (Multiply, MultiplyConfig(), ((3, 7, 5, 2), (3, 7, 5, 2)), torch.mul),
    (BroadcastAdd, BroadcastAddConfig(), ((3, 1, 5), (3, 7, 1)), torch.add),
    (BroadcastAdd, BroadcastAddConfig(), ((1, 1), (3, 70)), torch.add),
    (Scale, ScaleConfig(factor=-0.3), ((3, 7),), lambda x: -0.3 * x),
    (Clamp, ClampConfig(minimum=-0.5, maximum=1.0), ((3, 7, 5),), lambda x: x.clamp(-0.5, 1.0)),
    (Clamp, ClampConfig(minimum=0.5, maximum=0.5), ((3, 7),), lambda x: x.clamp(0.5, 0.5)),
    (LearnedScale, LearnedScaleConfig(init_value=0.3), ((30, 70, 50),), lambda x, gamma: x * gamma),
    (MatrixProduct, MatrixProductConfig(), ((3, 7, 50), (3, 50, 4)), torch.matmul),
]


@pytest.mark.parametrize(
    ("kind", "config", "shapes", "formula"), CASES, ids=lambda part: getattr(part, "__name__", None)
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_agrees_with_torch(
    kind: type[Component[Any]], config: BaseModel, shapes: tuple[Shape, ...], formula: Formula, dtype: str
) -> None:
    generator = np.random.default_rng(7)
    component = kind("case", config, device="cpu", dtype=dtype, seed=3)
    inputs = [
        # few ids and halves: ties, and values at the bounds
        generator.integers(-9, 9, shape) if port.is_ids else (generator.integers(-6, 6, shape) / 4).astype(dtype)
        for port, shape in zip(component.ports, shapes, strict=True)
    ]
    named = {port.name: shape for port, shape in zip(component.ports, shapes, strict=True)}
    component.build(BuildContext(named, RuntimeMode.TRAINING))
    given = [torch.from_numpy(array.copy()) for array in (*inputs, *component.get_parameters())]
    floating = [tensor.requires_grad_() for tensor in given if tensor.is_floating_point()]
    expected = formula(*given)

    result = component.forward(*inputs)
    assert_close(result, expected)
    dy = generator.standard_normal(result.shape).astype(dtype)
    component.zero_gradients()
    found = component.backward(*inputs, dy)
    expected.backward(torch.from_numpy(dy))
    gradients = [*(found if isinstance(found, tuple) else (found,)), *component.get_gradients()]
    for gradient, tensor in zip((g for g in gradients if g.dtype == dtype), floating, strict=True):
        assert_close(gradient, tensor.grad)


def assert_close(values: Any, expected: Any) -> None:
    wanted = expected.detach().numpy()
    assert values.shape == wanted.shape
    tolerance = TOLERANCE[values.dtype.name]
    np.testing.assert_allclose(values, wanted, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wanted).max()))
