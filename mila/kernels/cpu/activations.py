"""Activation functions and their derivatives on tiles that stay in cache.

Each function writes to its outputs and to three scratch arrays of the tile's shape. The value functions write
``output`` after their last look at ``x``, so that it may be ``x``; the value-and-derivative functions do so with
``derivative``. All are stable: an ``exp`` overflows only where its reciprocal is then the zero that it should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mila.errors import ConfigurationError
from mila.kernels.cpu.normal_distribution import normal_cumulative, reflect
from mila.kernels.signatures import ActivationFunction, Array

#: Scratch arrays that every function may use.
SCRATCH = 3

_Value = Callable[[Array, Array, ActivationFunction, Array], None]
_ValueAndDerivative = Callable[[Array, Array, Array, ActivationFunction, Array], None]


def activate(function: ActivationFunction, output: Array, x: Array, scratch: Array) -> None:
    """``output = f(x)``; ``output`` may be ``x``; ``scratch (SCRATCH, *x.shape)``."""
    _functions(function.kind)[0](output, x, function, scratch)


def activate_with_derivative(
    function: ActivationFunction, output: Array, derivative: Array, x: Array, scratch: Array
) -> None:
    """``output = f(x)``, ``derivative = f'(x)``; ``derivative`` may be ``x``; ``scratch (SCRATCH, *x.shape)``."""
    _functions(function.kind)[1](output, derivative, x, function, scratch)


def _none(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    np.copyto(output, x)


def _none_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    np.copyto(output, x)
    derivative.fill(1.0)


def _relu(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    np.clip(x, 0.0, math.inf, out=output)


def _relu_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """The derivative is 1 - (x <= 0): 0 at zero, and not 0 for NaN, which must not vanish on the way back."""
    np.clip(x, 0.0, math.inf, out=output)
    np.less_equal(x, 0.0, out=derivative)
    np.subtract(1.0, derivative, out=derivative)


def _leaky_relu(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    negative = scratch[0]
    np.clip(x, -math.inf, 0.0, out=negative)
    negative *= function.leaky_relu_slope
    np.clip(x, 0.0, math.inf, out=output)
    output += negative


def _leaky_relu_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    _leaky_relu(output, x, function, scratch)
    positive = scratch[0]
    np.greater(x, 0.0, out=positive)
    np.subtract(1.0, positive, out=derivative)
    derivative *= function.leaky_relu_slope
    derivative += positive


def _tanh(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    np.tanh(x, out=output)


def _tanh_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    np.tanh(x, out=output)
    np.multiply(output, output, out=derivative)
    np.subtract(1.0, derivative, out=derivative)


def _logistic(output: Array, x: Array, spare: Array) -> None:
    """``output = 1 / (1 + exp(-x))``, from ``exp(-abs(x))``, which cannot overflow; neither array is ``x``."""
    np.abs(x, out=output)
    np.negative(output, out=output)
    np.exp(output, out=output)
    np.add(output, 1.0, out=spare)
    output /= spare
    reflect(output, x, spare)


def _sigmoid(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    _logistic(scratch[0], x, scratch[1])
    np.copyto(output, scratch[0])


def _sigmoid_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    _logistic(output, x, scratch[0])
    np.subtract(1.0, output, out=derivative)
    derivative *= output


def _silu(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    _divide_by_exponential(output, x, x, scratch[0])


def _divide_by_exponential(output: Array, x: Array, argument: Array, spare: Array) -> None:
    """``output = x / (1 + exp(-argument))``; where ``exp`` overflows, the quotient is the zero that it should be."""
    np.negative(argument, out=spare)
    np.exp(spare, out=spare)
    np.add(spare, 1.0, out=spare)
    np.divide(x, spare, out=output)


def _silu_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """With s the sigmoid and y = x s: ``f' = s + y (1 - s)``."""
    sigmoid, rest = scratch[0], scratch[1]
    _logistic(sigmoid, x, rest)
    np.multiply(sigmoid, x, out=output)
    np.subtract(1.0, sigmoid, out=rest)
    rest *= output
    np.add(sigmoid, rest, out=derivative)


#: The slope inside the sigmoid of quick GELU (Hendrycks & Gimpel 2016, section 2).
_QUICK = 1.702


def _quick_gelu(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    np.multiply(x, _QUICK, out=scratch[1])
    _divide_by_exponential(output, x, scratch[1], scratch[0])


def _quick_gelu_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """With s = sigmoid(1.702 x) and y = x s: ``f' = s + 1.702 y (1 - s)``."""
    sigmoid, rest = scratch[0], scratch[1]
    np.multiply(x, _QUICK, out=scratch[2])
    _logistic(sigmoid, scratch[2], rest)
    np.multiply(sigmoid, x, out=output)
    np.subtract(1.0, sigmoid, out=rest)
    rest *= _QUICK
    rest *= output
    np.add(sigmoid, rest, out=derivative)


def _gelu(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    normal_cumulative(scratch[0], scratch[1], x, scratch[2])
    np.multiply(scratch[0], x, out=output)


def _gelu_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """``f' = Phi(x) + x phi(x)`` with the normal density phi."""
    cumulative, density = scratch[0], scratch[1]
    normal_cumulative(cumulative, density, x, scratch[2])
    np.multiply(cumulative, x, out=output)
    density *= 1.0 / math.sqrt(2.0 * math.pi)
    density *= x
    np.add(cumulative, density, out=derivative)


#: GELU by tanh (Hendrycks & Gimpel 2016): ``x s`` with ``s = (1 + tanh(x (A + B x²))) / 2``.
_A = math.sqrt(2.0 / math.pi)
_B = 0.044715 * _A
#: Beyond this the tanh is one to the last bit in float64, so that x may be clipped to it before it is squared.
_SATURATED = 10.0


def _gelu_tanh_gate(gate: Array, clipped: Array, square: Array, x: Array) -> None:
    """Write s, the clipped x and its square; none of the arrays is ``x``."""
    np.clip(x, -_SATURATED, _SATURATED, out=clipped)
    np.multiply(clipped, clipped, out=square)
    np.multiply(square, _B, out=gate)
    gate += _A
    gate *= clipped
    np.tanh(gate, out=gate)
    gate *= 0.5
    gate += 0.5


def _gelu_tanh(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    _gelu_tanh_gate(scratch[0], scratch[1], scratch[0], x)
    np.multiply(scratch[0], x, out=output)


def _gelu_tanh_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """``f' = s + 2 x s (1 - s) (A + 3 B x²)``, since s has 2 s (1 - s) times the slope of its argument."""
    gate, slope, square = scratch[0], scratch[1], output
    _gelu_tanh_gate(gate, slope, square, x)
    square *= 6.0 * _B
    square += 2.0 * _A
    slope *= square
    slope *= gate
    np.subtract(1.0, gate, out=output)
    slope *= output
    np.multiply(gate, x, out=output)
    np.add(gate, slope, out=derivative)


def _mish_terms(p: Array, q: Array, numerator: Array, x: Array) -> None:
    """With exp(x) = p / q and p, q at most one: ``tanh(softplus(x)) = N / (N + 2 q²)``, ``N = p (p + 2 q)``."""
    np.clip(x, -math.inf, 0.0, out=p)
    np.exp(p, out=p)
    np.clip(x, 0.0, math.inf, out=q)
    np.negative(q, out=q)
    np.exp(q, out=q)
    np.multiply(q, 2.0, out=numerator)
    numerator += p
    numerator *= p


def _mish(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """``x tanh(softplus(x))`` (Misra 2019)."""
    p, q, numerator = scratch
    _mish_terms(p, q, numerator, x)
    q *= q
    q *= 2.0
    q += numerator
    numerator /= q
    np.multiply(numerator, x, out=output)


def _mish_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """With D = N + 2 q²: ``f' = N / D + 4 x p q² (p + q) / D²``, which is tanh + x (1 - tanh²) sigmoid."""
    p, q, numerator = scratch
    _mish_terms(p, q, numerator, x)
    slope = output
    np.add(p, q, out=slope)
    slope *= p
    q *= q
    slope *= q
    slope *= 4.0
    q *= 2.0
    q += numerator
    numerator /= q
    slope /= q
    slope /= q
    np.multiply(slope, x, out=p)
    np.multiply(numerator, x, out=output)
    np.add(numerator, p, out=derivative)


def _elu(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """``x`` where it is positive, else ``alpha (exp(x) - 1)`` (Clevert, Unterthiner & Hochreiter 2016)."""
    negative = scratch[0]
    np.clip(x, -math.inf, 0.0, out=negative)
    np.expm1(negative, out=negative)
    negative *= function.elu_alpha
    np.clip(x, 0.0, math.inf, out=output)
    output += negative


def _elu_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """The derivative is 1 where x is positive, else ``alpha exp(x)``: alpha at zero."""
    _elu(output, x, function, scratch)
    positive, exponential = scratch[0], scratch[1]
    np.greater(x, 0.0, out=positive)
    np.clip(x, -math.inf, 0.0, out=exponential)
    np.exp(exponential, out=exponential)
    exponential *= function.elu_alpha
    np.subtract(1.0, positive, out=derivative)
    derivative *= exponential
    derivative += positive


def _hardswish_gate(gate: Array, x: Array) -> None:
    """``clamp(x + 3, 0, 6) / 6``, which is one where x is large, so that the product with x does not overflow."""
    np.add(x, 3.0, out=gate)
    np.clip(gate, 0.0, 6.0, out=gate)
    gate /= 6.0


def _hardswish(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """``x clamp(x + 3, 0, 6) / 6`` (Howard et al. 2019)."""
    _hardswish_gate(scratch[0], x)
    np.multiply(scratch[0], x, out=output)


def _hardswish_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """With g the gate: ``f' = g + x / 6`` where ``abs(x) < 3``, else g."""
    gate, slope, inside = scratch
    _hardswish_gate(gate, x)
    np.clip(x, -3.0, 3.0, out=slope)
    np.abs(slope, out=inside)
    np.less(inside, 3.0, out=inside)
    slope /= 6.0
    slope *= inside
    np.multiply(gate, x, out=output)
    np.add(gate, slope, out=derivative)


def _softplus_value(value: Array, scaled: Array, is_linear: Array, x: Array, function: ActivationFunction) -> None:
    """``max(x, 0) + log(1 + exp(-abs(beta x))) / beta``, which cannot overflow, or x; no other array is ``x``."""
    np.multiply(x, function.softplus_beta, out=scaled)
    np.greater(scaled, function.softplus_threshold, out=is_linear)
    np.abs(scaled, out=value)
    np.negative(value, out=value)
    np.exp(value, out=value)
    np.log1p(value, out=value)
    value /= function.softplus_beta
    np.clip(x, 0.0, math.inf, out=scaled)
    value += scaled
    np.copyto(value, x, where=is_linear)


def _mask(scratch: Array, x: Array) -> Array:
    """Truth values of the shape of ``x`` in the bytes of one scratch array."""
    return scratch.view(np.bool_)[..., : x.shape[-1]]


def _softplus(output: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """``log(1 + exp(beta x)) / beta`` (Dugas et al. 2001)."""
    value = scratch[1]
    _softplus_value(value, scratch[0], _mask(scratch[2], x), x, function)
    np.copyto(output, value)


def _softplus_both(output: Array, derivative: Array, x: Array, function: ActivationFunction, scratch: Array) -> None:
    """The derivative is ``sigmoid(beta x)``, and 1 where the function is linear."""
    scaled, is_linear = scratch[0], _mask(scratch[2], x)
    _softplus_value(output, scaled, is_linear, x, function)
    np.multiply(x, function.softplus_beta, out=scaled)
    _logistic(derivative, scaled, scratch[1])
    np.copyto(derivative, 1.0, where=is_linear)


_FUNCTIONS: dict[str, tuple[_Value, _ValueAndDerivative]] = {
    "none": (_none, _none_both),
    "relu": (_relu, _relu_both),
    "gelu": (_gelu, _gelu_both),
    "gelu_tanh": (_gelu_tanh, _gelu_tanh_both),
    "quick_gelu": (_quick_gelu, _quick_gelu_both),
    "silu": (_silu, _silu_both),
    "tanh": (_tanh, _tanh_both),
    "sigmoid": (_sigmoid, _sigmoid_both),
    "leaky_relu": (_leaky_relu, _leaky_relu_both),
    "mish": (_mish, _mish_both),
    "elu": (_elu, _elu_both),
    "hardswish": (_hardswish, _hardswish_both),
    "softplus": (_softplus, _softplus_both),
}

#: The names that ``kind`` may have.
ACTIVATION_KINDS = tuple(_FUNCTIONS)


def _functions(kind: str) -> tuple[_Value, _ValueAndDerivative]:
    try:
        return _FUNCTIONS[kind]
    except KeyError:
        raise ConfigurationError(f"activation kind: expected one of {', '.join(_FUNCTIONS)}, got {kind!r}") from None
