"""The mixture of experts gives what the same layers in PyTorch give, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mila.components import MixtureOfExperts, MixtureOfExpertsConfig
from mila.core import BuildContext, RuntimeMode

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

TOLERANCE = {"float32": 3e-6, "float64": 1e-13}
FUNCTIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
CONFIGS = [
    *({"num_experts": 4, "activation": kind} for kind in FUNCTIONS),
    *({"num_experts": 5, "top_k": top_k} for top_k in (1, 3, 5)),
    {"num_experts": 1, "top_k": 1},
]
BUILDS = [*((options, dtype) for options in CONFIGS for dtype in TOLERANCE), ({"num_experts": 20}, "float64")]


def mixture_of(x: Any, p: dict[str, Any], config: MixtureOfExpertsConfig) -> Any:
    """Run every expert on every token, and leave the others' results out."""
    scores, chosen = torch.topk(x @ p["router.weight"].T, config.top_k)
    weights = torch.softmax(scores, -1)
    result = torch.zeros_like(x)
    for expert in range(config.num_experts):
        name = f"experts.{expert}"
        hidden = FUNCTIONS[config.activation](
            torch.nn.functional.linear(x, p[f"{name}.up.weight"], p[f"{name}.up.bias"])
        )
        out = torch.nn.functional.linear(hidden, p[f"{name}.down.weight"], p[f"{name}.down.bias"])
        result = result + out * (weights * (chosen == expert)).sum(-1, keepdim=True)
    return result


@pytest.mark.parametrize(("options", "dtype"), BUILDS, ids=str)
def test_agrees_with_torch(options: dict[str, Any], dtype: str) -> None:
    config = MixtureOfExpertsConfig(embedding_dim=24, hidden_dim=40, **options)
    mixture = MixtureOfExperts("experts", config, device="cpu", dtype=dtype, seed=3)
    mixture.build(BuildContext((3, 17, 24), RuntimeMode.TRAINING))
    generator = np.random.default_rng(7)
    x, dy = (generator.standard_normal((3, 17, 24)).astype(dtype) for _ in range(2))
    names = mixture.get_parameter_names()
    given = torch.from_numpy(x.copy()).requires_grad_()
    parameters = {
        name: torch.from_numpy(array.copy()).requires_grad_()
        for name, array in zip(names, mixture.get_parameters(), strict=True)
    }
    expected = mixture_of(given, parameters, config)
    assert_close(mixture.forward(x), expected)

    expected.backward(torch.from_numpy(dy))
    assert_close(mixture.backward(x, dy), given.grad)
    for name, gradient in zip(names, mixture.get_gradients(), strict=True):
        assert_close(gradient, parameters[name].grad)


def assert_close(values: Any, expected: Any) -> None:
    wanted = expected.detach().numpy()
    assert values.shape == wanted.shape
    tolerance = TOLERANCE[values.dtype.name]
    np.testing.assert_allclose(values, wanted, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wanted).max()))
