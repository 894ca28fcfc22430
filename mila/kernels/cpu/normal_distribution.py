"""The normal distribution function, which NumPy lacks, for the exact GELU: accurate in its tails and without masks."""

from __future__ import annotations

import numpy as np

from mila.kernels.signatures import Array

#: The mapping ``t = (K - z) / (K + z)`` takes z in [0, inf) to t in (-1, 1].
_K = 4.0

#: Chebyshev interpolants of ``(K + z) exp(z² / 2) Phi(-z)`` in t, as powers of t, lowest first, from 50 digits.
_COEFFICIENTS = {
    np.dtype(np.float32): (
        0.7552851304157515,
        0.6078963965890951,
        0.38713739914843553,
        0.18652680596407173,
        0.060396604828050586,
        0.007511891967866995,
        -0.0034798308762466882,
        -0.0015633370838803145,
        0.0001335102422702405,
        0.00015712155479473728,
        -1.6733153708768409e-06,
    ),
    np.dtype(np.float64): (
        0.7552851304157515,
        0.6078966419718931,
        0.38713740074221653,
        0.1865218579595672,
        0.0603965748907624,
        0.007540188969137313,
        -0.0034796923628903557,
        -0.0016308184878823643,
        0.00013334425890372837,
        0.0002310951507876874,
        -1.9079074883936755e-06,
        -3.514564458582385e-05,
        7.152737509308815e-07,
        5.9229798276747605e-06,
        -6.2620687669596e-07,
        -1.0270948807114341e-06,
        2.662327898883562e-07,
        1.6231917680473566e-07,
        -7.98985075256226e-08,
        -1.9608339140939514e-08,
        1.6536044775506402e-08,
        1.2845818869925269e-09,
        -1.7737405043949108e-09,
    ),
}

#: Beyond this distance from zero ``exp(-z² / 2)`` is zero in float64, so that larger values may be taken for it.
_FARTHEST = 40.0


def normal_cumulative(cumulative: Array, exponential: Array, x: Array, spare: Array) -> None:
    """``cumulative = Phi(x)`` and ``exponential = exp(-x² / 2)``; arrays of one shape and dtype, none of them ``x``.

    ``Phi(-z) = exp(-z² / 2) G(z) / (K + z)`` for z = abs(x), with G a polynomial in ``(K - z) / (K + z)`` (the form of
    Shepherd & Laframboise 1981, "Chebyshev approximation of (1 + 2x) exp(x²) erfc(x)").
    """
    reciprocal, argument = exponential, spare
    _distance(reciprocal, x)
    reciprocal += _K
    np.reciprocal(reciprocal, out=reciprocal)
    np.multiply(reciprocal, 2.0 * _K, out=argument)
    argument -= 1.0
    highest, *others = reversed(_COEFFICIENTS[x.dtype])
    np.multiply(argument, highest, out=cumulative)
    for coefficient in others[:-1]:
        cumulative += coefficient
        cumulative *= argument
    cumulative += others[-1]
    cumulative *= reciprocal
    _distance(exponential, x)
    exponential *= exponential
    exponential *= -0.5
    np.exp(exponential, out=exponential)
    cumulative *= exponential
    reflect(cumulative, x, spare)


def reflect(lower: Array, x: Array, spare: Array) -> None:
    """Turn ``F(-abs(x))`` of a distribution symmetric about zero into ``F(x)``, in place: ``abs((x > 0) - lower)``."""
    np.greater(x, 0.0, out=spare)
    np.subtract(spare, lower, out=lower)
    np.abs(lower, out=lower)


def _distance(output: Array, x: Array) -> None:
    np.clip(x, -_FARTHEST, _FARTHEST, out=output)
    np.abs(output, out=output)
