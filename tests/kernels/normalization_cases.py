"""Cases of the norms and of softmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels import references
from tests.kernels.bench import Bench, Build, Case, Run, wide

_EPSILON = 1e-5
#: The parameters that have no gradient in a backward pass.
_FROZEN = ((), ("dweight",), ("dbias",), ("dweight", "dbias"))


def _layer_norm(x: Array) -> tuple[Array, Array, Array]:
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + _EPSILON)
    return mean, rstd, (x - mean[:, None]) * rstd[:, None]


def _join(frozen: tuple[str, ...]) -> str:
    return "-".join(frozen) or "nothing"


def layer_norm_cases() -> Iterator[Case]:
    """Layer norm, forward and backward, with and without weight and bias, each frozen or not."""

    def forward(biased: bool, weighted: bool = True) -> Build:
        def build(b: Bench) -> Run:
            x = b.array(b.rows, b.columns) + b.dtype.type(3)
            weight = b.array(b.columns) if weighted else None
            bias = b.array(b.columns) if biased else None
            y = x if b.alias == "x" else b.empty(b.rows, b.columns)
            mean, rstd = b.empty(b.rows), b.empty(b.rows)
            centre, spread, normal = _layer_norm(wide(x))
            expected = normal * (1 if weight is None else wide(weight)) + (0 if bias is None else wide(bias))
            return Run(
                lambda: b.kernels.layer_norm_forward(y, mean, rstd, x, weight, bias, _EPSILON),
                {"output": y, "mean": mean, "rstd": rstd},
                {"output": expected, "mean": centre, "rstd": spread},
            )

        return build

    def backward(accumulate: bool, frozen: tuple[str, ...], weighted: bool = True) -> Build:
        def build(b: Bench) -> Run:
            x, dy = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
            weight = b.array(b.columns) if weighted else None
            dx = b.empty(b.rows, b.columns)
            outputs = {"dx": dx}
            for name in ("dweight", "dbias"):
                if name not in frozen:
                    outputs[name] = (b.array if accumulate else b.empty)(b.columns)
            mean, rstd, normal = _layer_norm(wide(x))
            g = wide(dy) * (1 if weight is None else wide(weight))
            means = g.mean(axis=1, keepdims=True), (g * normal).mean(axis=1, keepdims=True)
            expected = {
                "dx": rstd[:, None] * (g - means[0] - normal * means[1]),
                "dweight": (wide(dy) * normal).sum(axis=0),
                "dbias": wide(dy).sum(axis=0),
            }
            expected = {
                name: expected[name] + (wide(outputs[name]) if accumulate and name != "dx" else 0) for name in outputs
            }
            saved = b.statistics(mean), b.statistics(rstd)
            workspace = b.workspace(b.kernels.layer_norm_backward_workspace(b.rows, b.columns))
            parameters = outputs.get("dweight"), outputs.get("dbias")
            return Run(
                lambda: b.kernels.layer_norm_backward(dx, *parameters, *saved, dy, x, weight, accumulate, workspace),
                outputs,
                expected,
            )

        return build

    for option in (False, True):
        yield Case(f"layer_norm_forward-bias={option}", forward(option), ("x",))
        yield Case(f"layer_norm_forward-bias={option}-no-weight", forward(option, weighted=False), ("x",))
        for frozen in _FROZEN:
            name = f"layer_norm_backward-accumulate={option}-frozen={_join(frozen)}"
            yield Case(name, backward(option, frozen))
        for frozen in _FROZEN:
            if "dweight" in frozen:
                name = f"layer_norm_backward-accumulate={option}-frozen={_join(frozen)}-no-weight"
                yield Case(name, backward(option, frozen, weighted=False))


def rms_norm_cases() -> Iterator[Case]:
    """RMS norm, forward and backward, with and without weight, bias and offset, each parameter frozen or not."""

    def forward(biased: bool, offset: float, weighted: bool = True) -> Build:
        def build(b: Bench) -> Run:
            x, weight = b.array(b.rows, b.columns), b.array(b.columns) if weighted else None
            bias = b.array(b.columns) if biased else None
            y, rstd = (x if b.alias == "x" else b.empty(b.rows, b.columns)), b.empty(b.rows)
            spread = 1 / np.sqrt((wide(x) ** 2).mean(axis=1) + _EPSILON)
            factor = 1 if weight is None else wide(weight) + offset
            expected = wide(x) * spread[:, None] * factor + (0 if bias is None else wide(bias))
            workspace = b.workspace(b.kernels.rms_norm_forward_workspace(b.rows, b.columns))
            return Run(
                lambda: b.kernels.rms_norm_forward(y, rstd, x, weight, bias, _EPSILON, offset, workspace),
                {"output": y, "rstd": rstd},
                {"output": expected, "rstd": spread},
            )

        return build

    def backward(accumulate: bool, offset: float, frozen: tuple[str, ...], weighted: bool = True) -> Build:
        def build(b: Bench) -> Run:
            x, dy = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
            weight = b.array(b.columns) if weighted else None
            dx = b.empty(b.rows, b.columns)
            outputs = {"dx": dx}
            for name in ("dweight", "dbias"):
                if name not in frozen:
                    outputs[name] = (b.array if accumulate else b.empty)(b.columns)
            spread = 1 / np.sqrt((wide(x) ** 2).mean(axis=1, keepdims=True) + _EPSILON)
            g = wide(dy) * (1 if weight is None else wide(weight) + offset)
            expected = {
                "dx": spread * g - wide(x) * spread**3 * (g * wide(x)).mean(axis=1, keepdims=True),
                "dweight": (wide(dy) * wide(x) * spread).sum(axis=0),
                "dbias": wide(dy).sum(axis=0),
            }
            expected = {
                name: expected[name] + (wide(outputs[name]) if accumulate and name != "dx" else 0) for name in outputs
            }
            rstd = b.statistics(spread[:, 0])
            workspace = b.workspace(b.kernels.rms_norm_backward_workspace(b.rows, b.columns))
            parameters = outputs.get("dweight"), outputs.get("dbias")
            return Run(
                lambda: b.kernels.rms_norm_backward(
                    dx, *parameters, rstd, dy, x, weight, offset, accumulate, workspace
                ),
                outputs,
                expected,
            )

        return build

    for option in (False, True):
        for offset in (0.0, 1.0):
            yield Case(f"rms_norm_forward-bias={option}-offset={offset}", forward(option, offset), ("x",))
            for frozen in _FROZEN:
                name = f"rms_norm_backward-accumulate={option}-offset={offset}-frozen={_join(frozen)}"
                yield Case(name, backward(option, offset, frozen))
        yield Case(f"rms_norm_forward-bias={option}-no-weight", forward(option, 1.0, weighted=False), ("x",))
        for frozen in _FROZEN:
            if "dweight" in frozen:
                name = f"rms_norm_backward-accumulate={option}-frozen={_join(frozen)}-no-weight"
                yield Case(name, backward(option, 1.0, frozen, weighted=False))


def softmax_cases() -> Iterator[Case]:
    """Softmax along the last, the first and a middle axis."""

    def shape(b: Bench, axis: int) -> tuple[int, ...]:
        return (b.rows, b.columns) if axis in (-1, 0) else (3, b.rows, b.columns)

    def forward(axis: int, shift: float = 0.0) -> Build:
        def build(b: Bench) -> Run:
            x = b.array(*shape(b, axis)) * b.dtype.type(4) + b.dtype.type(shift)
            y = x if b.alias == "x" else b.empty(*x.shape)
            workspace = b.workspace(b.kernels.softmax_workspace(x.shape, axis))
            expected = references.softmax(wide(x), axis)
            return Run(lambda: b.kernels.softmax_forward(y, x, axis, workspace), {"output": y}, {"output": expected})

        return build

    def backward(axis: int) -> Build:
        def build(b: Bench) -> Run:
            dy = b.array(*shape(b, axis))
            y = references.softmax(wide(b.array(*dy.shape)), axis).astype(b.dtype)
            dx = dy if b.alias == "dy" else b.empty(*dy.shape)
            workspace = b.workspace(b.kernels.softmax_workspace(dy.shape, axis))
            products = wide(dy) * wide(y)
            expected = products - wide(y) * products.sum(axis=axis, keepdims=True)
            return Run(lambda: b.kernels.softmax_backward(dx, dy, y, axis, workspace), {"dx": dx}, {"dx": expected})

        return build

    for axis in (-1, 0, 1):
        yield Case(f"softmax_forward-axis={axis}", forward(axis), ("x",))
        yield Case(f"softmax_backward-axis={axis}", backward(axis), ("dy",))
    for axis in (-1, 0):
        yield Case(f"softmax_forward-axis={axis}-far-below-zero", forward(axis, -1000.0))
