"""Components that cut, join, reorder, pad and reduce give what PyTorch gives, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from mila.components import (
    Chunk,
    ChunkConfig,
    Concat,
    ConcatConfig,
    CrossAttention,
    CrossAttentionConfig,
    Flatten,
    FlattenConfig,
    Mean,
    MeanConfig,
    Pad,
    PadConfig,
    Permute,
    PermuteConfig,
    Reshape,
    ReshapeConfig,
    Split,
    SplitConfig,
    Sum,
    SumConfig,
    Transpose,
    TransposeConfig,
)
from mila.core import BuildContext, Component, RuntimeMode

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

TOLERANCE = {"float32": 1e-6, "float64": 1e-14}
Shape = tuple[int, ...]
Formula = Callable[..., Any]


def pad(*flat: int, mode: str = "constant", value: float | None = None) -> Formula:
    return lambda x: torch.nn.functional.pad(x, flat, mode, value)


CASES: list[tuple[type[Component[Any]], BaseModel, tuple[Shape, ...], Formula]] = [
    (Split, SplitConfig(size=2), ((3, 5, 4),), lambda x: torch.split(x, [2, 3], 1)),
    (Split, SplitConfig(size=3, dim=3), ((2, 3, 5, 4),), lambda x: torch.split(x, [3, 1], 3)),
    (Chunk, ChunkConfig(chunks=3, dim=2), ((2, 5, 6),), lambda x: torch.chunk(x, 3, 2)),
    (Chunk, ChunkConfig(chunks=2, dim=0), ((4, 5),), lambda x: torch.chunk(x, 2, 0)),
    (Concat, ConcatConfig(), ((2, 3, 5), (2, 4, 5)), lambda *x: torch.cat(x, 1)),
    (Concat, ConcatConfig(inputs=3, axis=0), ((2, 3), (1, 3), (4, 3)), lambda *x: torch.cat(x, 0)),
    (Reshape, ReshapeConfig(dims=(5, 2, 3)), ((2, 6, 5),), lambda x: x.reshape(2, 5, 2, 3)),
    (Flatten, FlattenConfig(), ((2, 3, 5, 4),), lambda x: x.flatten(1)),
    (Transpose, TransposeConfig(dim0=3, dim1=1), ((2, 3, 5, 4),), lambda x: x.transpose(3, 1)),
    (Permute, PermuteConfig(axes=(3, 1, 2)), ((2, 3, 5, 4),), lambda x: x.permute(0, 3, 1, 2)),
    (Pad, PadConfig(pairs=((1, 2), (0, 3)), value=0.5), ((2, 5, 3),), pad(1, 2, 0, 3, value=0.5)),
    (Pad, PadConfig(pairs=((2, 1),), mode="reflect"), ((2, 5, 3),), pad(2, 1, mode="reflect")),
    (Pad, PadConfig(pairs=((2, 1), (3, 4)), mode="reflect"), ((2, 3, 5, 4),), pad(2, 1, 3, 4, mode="reflect")),
    (Pad, PadConfig(pairs=((2, 1), (0, 4)), mode="replicate"), ((2, 3, 5, 4),), pad(2, 1, 0, 4, mode="replicate")),
    (Mean, MeanConfig(dim=1), ((3, 7, 4),), lambda x: x.mean(1)),
    (Mean, MeanConfig(dim=3, keepdim=True), ((2, 3, 5, 4),), lambda x: x.mean(3, keepdim=True)),
    (Sum, SumConfig(dim=2), ((2, 3, 5, 4),), lambda x: x.sum(2)),
    (Sum, SumConfig(dim=1, keepdim=True), ((3, 7),), lambda x: x.sum(1, keepdim=True)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("component_class", "config", "shapes", "formula"), CASES, ids=str)
def test_agrees_with_pytorch(
    component_class: type[Component[Any]], config: BaseModel, shapes: tuple[Shape, ...], formula: Formula, dtype: str
) -> None:
    random = np.random.default_rng(3)
    component = component_class("component", config, device="cpu", dtype=dtype)
    named = {port.name: shape for port, shape in zip(component.ports, shapes, strict=True)}
    component.build(BuildContext(named, RuntimeMode.TRAINING))
    inputs = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    variables = [torch.from_numpy(x.copy()).requires_grad_() for x in inputs]
    expected = formula(*variables)
    made = component.forward(*inputs)
    expected, made = ((value if isinstance(value, tuple) else (value,)) for value in (expected, made))
    upstream = [random.standard_normal(y.shape).astype(dtype) for y in made]
    torch.autograd.backward(expected, [torch.from_numpy(dy) for dy in upstream])
    found = component.backward(*inputs, *upstream)
    gradients = found if isinstance(found, tuple) else (found,)
    pairs = [*zip(made, expected, strict=True), *((dx, v.grad) for dx, v in zip(gradients, variables, strict=True))]
    for got, value in pairs:
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(got, value.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("bias", "context_dim"), [(True, 5), (False, 8)])
def test_cross_attention_agrees_with_pytorch(bias: bool, context_dim: int, dtype: str) -> None:
    random = np.random.default_rng(5)
    shapes = {"x": (2, 7, 8), "context": (2, 5, context_dim)}
    config = CrossAttentionConfig(embedding_dim=8, num_heads=2, context_dim=context_dim, bias=bias)
    component = CrossAttention("component", config, device="cpu", dtype=dtype)
    component.build(BuildContext(shapes, RuntimeMode.TRAINING))
    names = component.get_parameter_names()
    values = {name: random.standard_normal(p.shape) for name, p in zip(names, component.get_parameters(), strict=True)}
    for name, value in values.items():
        component.load_parameter(name, value.astype(dtype))
    x, context = (random.standard_normal(shape).astype(dtype) for shape in shapes.values())
    dy = random.standard_normal(x.shape).astype(dtype)

    variables = {name: torch.from_numpy(v.astype(dtype)).requires_grad_() for name, v in values.items()}
    inputs = [torch.from_numpy(a.copy()).requires_grad_() for a in (x, context)]

    def project(name: str, of: Any) -> Any:
        return torch.nn.functional.linear(of, variables[f"{name}.weight"], variables.get(f"{name}.bias"))

    def heads(of: Any) -> Any:
        return of.reshape(2, -1, 2, 4).transpose(1, 2)

    q, k, v = project("q_proj", inputs[0]), project("k_proj", inputs[1]), project("v_proj", inputs[1])
    attended = torch.nn.functional.scaled_dot_product_attention(heads(q), heads(k), heads(v))
    expected = project("o_proj", attended.transpose(1, 2).reshape(2, 7, 8))
    expected.backward(torch.from_numpy(dy))

    made = [component.forward(x, context), *component.backward(x, context, dy), *component.get_gradients()]
    wanted = [expected.detach(), *(a.grad for a in inputs), *(variables[name].grad for name in names)]
    for got, value in zip(made, wanted, strict=True):
        limit = 10 * TOLERANCE[dtype]
        np.testing.assert_allclose(got, value.numpy(), rtol=limit, atol=limit * max(1, np.abs(value.numpy()).max()))
