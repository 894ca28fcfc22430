"""A token meets the experts that its scores choose, and nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mila.components import MixtureOfExperts, MixtureOfExpertsConfig
from mila.core import BuildContext, RuntimeMode
from mila.kernels.signatures import Array

WIDTH, HIDDEN, EXPERTS = 6, 5, 4


def built(
    top_k: int = 2,
    shape: tuple[int, int, int] = (2, 7, WIDTH),
    mode: RuntimeMode = RuntimeMode.TRAINING,
    frozen: tuple[str, ...] = (),
) -> MixtureOfExperts:
    config = MixtureOfExpertsConfig(
        embedding_dim=WIDTH, hidden_dim=HIDDEN, num_experts=EXPERTS, top_k=top_k, activation="tanh"
    )
    mixture = MixtureOfExperts("experts", config, device="cpu", dtype="float64", seed=5)
    for name in frozen:
        mixture.override_parameter(name, trainable=False)
    mixture.build(BuildContext(shape, mode, initialize_parameters=True))
    return mixture


def values(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape)


def parameters(mixture: MixtureOfExperts) -> dict[str, Array]:
    return dict(zip(mixture.get_parameter_names(), mixture.get_parameters(), strict=True))


def gradients(mixture: MixtureOfExperts) -> dict[str, Array | None]:
    return dict(zip(mixture.get_parameter_names(), mixture.get_gradients(), strict=True))


def chosen(mixture: MixtureOfExperts, x: Array, top_k: int) -> Array:
    """Return the experts of each token."""
    scores = x.reshape(-1, WIDTH) @ parameters(mixture)["router.weight"].T
    return np.argsort(-scores, axis=1, kind="stable")[:, :top_k]


def mixed(mixture: MixtureOfExperts, token: Array, experts: Array) -> Array:
    """Compute one token in one line after the other."""
    p = parameters(mixture)
    exponentials = np.exp([float(p["router.weight"][e] @ token) for e in experts])
    result = np.zeros(WIDTH)
    for expert, weight in zip(experts, exponentials / exponentials.sum(), strict=True):
        name = f"experts.{expert}"
        hidden = np.tanh(p[f"{name}.up.weight"] @ token + p[f"{name}.up.bias"])
        result += weight * (p[f"{name}.down.weight"] @ hidden + p[f"{name}.down.bias"])
    return result


@pytest.mark.parametrize("top_k", range(1, EXPERTS + 1))
def test_each_token_is_the_weighted_sum_of_its_experts(top_k: int) -> None:
    mixture, x = built(top_k), values(2, 7, WIDTH)
    experts = chosen(mixture, x, top_k)
    expected = [mixed(mixture, token, own) for token, own in zip(x.reshape(-1, WIDTH), experts, strict=True)]
    np.testing.assert_allclose(mixture.forward(x).reshape(-1, WIDTH), expected, rtol=1e-12, atol=1e-14)


def test_parameters_are_named_and_ordered_as_declared() -> None:
    ends = ("up.weight", "up.bias", "down.weight", "down.bias")
    experts = [f"experts.{expert}.{end}" for expert, end in itertools.product(range(EXPERTS), ends)]
    assert built().get_parameter_names() == ["router.weight", *experts]
    assert {a.shape for a in built().get_parameters()} == {(4, 6), (5, 6), (5,), (6, 5), (6,)}


def test_initial_values_lie_within_the_root_of_the_fan_in() -> None:
    for name, array in parameters(built()).items():
        bound = (HIDDEN if ".down." in name else WIDTH) ** -0.5
        assert 0.5 * bound < np.abs(array).max() <= bound, name


def test_of_equal_scores_the_first_experts_are_used_in_equal_parts() -> None:
    mixture, x = built(), values(2, 7, WIDTH)
    parameters(mixture)["router.weight"].fill(0)
    expected = [mixed(mixture, token, np.array([0, 1])) for token in x.reshape(-1, WIDTH)]
    np.testing.assert_allclose(mixture.forward(x).reshape(-1, WIDTH), expected, rtol=1e-12, atol=1e-14)


def test_experts_that_nobody_uses_have_gradients_of_exactly_zero() -> None:
    mixture, x = built(top_k=1), values(1, 1, WIDTH)
    (expert,) = chosen(mixture, x, 1)[0]
    for array in mixture.get_gradients():
        assert array is not None
        array.fill(np.nan)
    mixture.zero_gradients()
    mixture.forward(x)
    mixture.backward(x, values(1, 1, WIDTH))
    found = gradients(mixture)
    assert not any(array.any() for name, array in found.items() if f".{expert}." not in name)  # type: ignore[union-attr]
    assert all(array.any() for name, array in found.items() if f".{expert}." in name)  # type: ignore[union-attr]


def test_a_token_of_nan_spoils_itself_and_the_experts_it_is_sent_to() -> None:
    mixture, x, dy = built(), values(2, 7, WIDTH), values(2, 7, WIDTH)
    expected, expected_gradient = mixture.forward(x).copy(), mixture.backward(x, dy).copy()
    x[1, 2] = np.nan
    result, gradient = mixture.forward(x), mixture.backward(x, dy)
    others = np.ones((2, 7), bool)
    others[1, 2] = False
    assert np.isnan(result[1, 2]).all()
    assert np.isnan(gradient[1, 2]).all()
    np.testing.assert_allclose(result[others], expected[others], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gradient[others], expected_gradient[others], rtol=1e-12, atol=1e-14)
    spoiled = {name.split(".")[1] for name, array in gradients(mixture).items() if np.isnan(array).any()}  # type: ignore[arg-type]
    assert spoiled == {"weight", "0", "1"}


def test_an_expert_of_nan_spoils_the_tokens_that_use_it() -> None:
    mixture, x = built(), values(2, 7, WIDTH)
    expected = mixture.forward(x).copy()
    parameters(mixture)["experts.2.up.weight"].fill(np.nan)
    uses = (chosen(mixture, x, 2) == 2).any(axis=1).reshape(2, 7)
    assert {True, False} == set(uses.reshape(-1).tolist())
    result = mixture.forward(x)
    assert np.isnan(result[uses]).all()
    np.testing.assert_array_equal(result[~uses], expected[~uses])


def test_any_parameter_may_be_frozen_alone() -> None:
    x, dy = values(2, 7, WIDTH), values(2, 7, WIDTH)
    whole = built()
    whole.forward(x)
    dx = whole.backward(x, dy)
    expected = gradients(whole)
    for name in ("router.weight", "experts.1.up.bias", "experts.1.up.weight", "experts.2.down.weight"):
        mixture = built(frozen=(name,))
        mixture.forward(x)
        np.testing.assert_array_equal(mixture.backward(x, dy), dx)
        found = gradients(mixture)
        assert found.pop(name) is None
        for other, array in found.items():
            np.testing.assert_array_equal(array, expected[other])


def test_inference_keeps_no_hidden_activations() -> None:
    contexts = [BuildContext((2, 7, WIDTH), mode) for mode in (RuntimeMode.INFERENCE, RuntimeMode.TRAINING)]
    inference, training = (
        {buffer.name: buffer.shape for buffer in built().plan(context).buffers} for context in contexts
    )
    assert "hidden" not in inference
    assert training["hidden"] == (2 * 7 * 2, HIDDEN)


def test_tokens_one_by_one_are_the_tokens_together() -> None:
    together, alone, x = built(), built(mode=RuntimeMode.INFERENCE, shape=(1, 7, WIDTH)), values(1, 7, WIDTH)
    tokens = [alone.forward(np.ascontiguousarray(x[:, t : t + 1])).copy() for t in range(7)]
    np.testing.assert_allclose(np.concatenate(tokens, axis=1), together.forward(x), rtol=1e-12, atol=1e-14)
