"""Cases of the elementwise kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mila.kernels.signatures import ActivationFunction
from tests.kernels import references
from tests.kernels.bench import Bench, Build, Case, Run, wide


def flat_cases() -> Iterator[Case]:
    def copy(b: Bench) -> Run:
        x, output = b.array(b.rows, b.columns), b.empty(b.rows, b.columns)
        return Run(lambda: b.kernels.copy(output, x), {"output": output}, {"output": wide(x)})

    def copy_of(dtype: str) -> Build:
        def build(b: Bench) -> Run:
            x = (10 * b.array(b.rows, b.columns)).astype(dtype)
            output = np.full_like(x, 77)
            return Run(lambda: b.kernels.copy(output, x), {"output": output}, {"output": wide(x)})

        return build

    def fill(dtype: str | None, value: float) -> Build:
        def build(b: Bench) -> Run:
            output = np.full((b.rows, b.columns), 77, dtype or b.dtype)
            expected = np.full(output.shape, value, output.dtype)
            return Run(lambda: b.kernels.fill(output, value), {"output": output}, {"output": wide(expected)})

        return build

    def add(b: Bench) -> Run:
        x, output = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
        return Run(lambda: b.kernels.add_in_place(output, x), {"output": output}, {"output": wide(output) + wide(x)})

    def scale(b: Bench) -> Run:
        x = b.array(b.rows, b.columns)
        output = x if b.alias == "x" else b.empty(b.rows, b.columns)
        return Run(lambda: b.kernels.scale(output, x, 0.3), {"output": output}, {"output": 0.3 * wide(x)})

    def residual(factor: float) -> Build:
        def build(b: Bench) -> Run:
            left, right = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
            output = {"": b.empty(b.rows, b.columns), "a": left, "b": right}[b.alias]
            expected = wide(left) + factor * wide(right)
            return Run(
                lambda: b.kernels.residual_forward(output, left, right, factor),
                {"output": output},
                {"output": expected},
            )

        return build

    def backward(b: Bench) -> Run:
        dy, slope = b.array(b.rows, b.columns), b.array(b.rows, b.columns)
        dx = {"": b.empty(b.rows, b.columns), "dy": dy, "derivative": slope}[b.alias]
        expected = wide(dy) * wide(slope)
        return Run(lambda: b.kernels.activation_backward(dx, dy, slope), {"dx": dx}, {"dx": expected})

    def dropout(probability: float) -> Build:
        def build(b: Bench) -> Run:
            x, key = b.array(b.rows, b.columns), 2**64 - 12345
            output = x if b.alias == "x" else b.empty(b.rows, b.columns)
            workspace = b.workspace(b.kernels.dropout_workspace(b.rows, b.columns))
            mask = references.keep_mask(x.size, probability, key).reshape(x.shape)
            expected = wide(x) * mask / (1 - probability) if probability < 1 else np.zeros(x.shape)
            return Run(
                lambda: b.kernels.dropout(output, x, probability, key, workspace),
                {"output": output},
                {"output": expected},
            )

        return build

    yield Case("copy", copy, elementwise=True)
    for dtype in ("int8", "int16", "int64"):
        yield Case(f"copy-{dtype}", copy_of(dtype), elementwise=True)
        yield Case(f"fill-{dtype}", fill(dtype, -7), elementwise=True)
    yield Case("fill", fill(None, 0.3), elementwise=True)
    yield Case("add_in_place", add, elementwise=True)
    yield Case("scale", scale, ("x",), elementwise=True)
    for factor in (1.0, -0.7):
        yield Case(f"residual_forward-{factor}", residual(factor), ("a", "b"), elementwise=True)
    yield Case("activation_backward", backward, ("dy", "derivative"), elementwise=True)
    for probability in (0.0, 0.1, 1.0):
        yield Case(f"dropout-{probability}", dropout(probability), ("x",), elementwise=True)


def activation_cases() -> Iterator[Case]:
    def forward(function: ActivationFunction, differentiate: bool) -> Build:
        def build(b: Bench) -> Run:
            x, y, slope = b.array(b.rows, b.columns), b.empty(b.rows, b.columns), b.empty(b.rows, b.columns)
            y = x if b.alias == "output" else y
            slope = x if b.alias == "derivative" else slope
            workspace = b.workspace(b.kernels.activation_forward_workspace(b.rows, b.columns))
            outputs = {"output": y, "derivative": slope} if differentiate else {"output": y}
            expected = {
                "output": references.activation(function, wide(x)),
                "derivative": references.activation_derivative(function, wide(x)),
            }
            given = slope if differentiate else None
            return Run(
                lambda: b.kernels.activation_forward(y, given, x, function, workspace),
                outputs,
                {name: expected[name] for name in outputs},
            )

        return build

    def gated_forward(function: ActivationFunction) -> Build:
        def build(b: Bench) -> Run:
            x, y = b.array(b.rows, 2 * b.columns), b.empty(b.rows, b.columns)
            workspace = b.workspace(b.kernels.gated_forward_workspace(b.rows, b.columns))
            gate, up = np.split(wide(x), 2, axis=1)
            expected = references.activation(function, gate) * up
            return Run(lambda: b.kernels.gated_forward(y, x, function, workspace), {"output": y}, {"output": expected})

        return build

    def gated_backward(function: ActivationFunction) -> Build:
        def build(b: Bench) -> Run:
            x, dy = b.array(b.rows, 2 * b.columns), b.array(b.rows, b.columns)
            dx = x if b.alias == "x" else b.empty(b.rows, 2 * b.columns)
            workspace = b.workspace(b.kernels.gated_backward_workspace(b.rows, b.columns))
            gate, up = np.split(wide(x), 2, axis=1)
            slope, value = references.activation_derivative(function, gate), references.activation(function, gate)
            expected = np.concatenate([wide(dy) * slope * up, wide(dy) * value], axis=1)
            return Run(lambda: b.kernels.gated_backward(dx, dy, x, function, workspace), {"dx": dx}, {"dx": expected})

        return build

    for kind in references.ACTIVATIONS:
        function = references.function_of(kind)
        yield Case(f"activation_forward-{kind}", forward(function, False), ("output",), elementwise=True)
        yield Case(f"activation_forward-{kind}-derivative", forward(function, True), ("derivative",), elementwise=True)
        yield Case(f"gated_forward-{kind}", gated_forward(function), elementwise=True)
        yield Case(f"gated_backward-{kind}", gated_backward(function), ("x",), elementwise=True)
