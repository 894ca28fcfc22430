"""Which activation function a kernel is to compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ActivationFunction:
    """One function, with the numbers that some kinds take; the others do not look at them.

    Attributes:
        kind: ``none relu gelu gelu_tanh quick_gelu silu tanh sigmoid leaky_relu mish elu hardswish softplus``.
        leaky_relu_slope: ``leaky_relu`` is ``x`` where ``x > 0``, else ``slope * x``.
        elu_alpha: ``elu`` is ``x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``.
        softplus_beta: ``softplus`` is ``log(1 + exp(beta * x)) / beta``; above 0.
        softplus_threshold: where ``beta * x`` is above it, ``softplus`` is ``x`` itself.
    """

    kind: str
    leaky_relu_slope: float = 0.01
    elu_alpha: float = 1.0
    softplus_beta: float = 1.0
    softplus_threshold: float = 20.0
