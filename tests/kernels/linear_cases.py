"""Cases of the matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.bench import Bench, Build, Case, Run, wide


def linear_cases() -> Iterator[Case]:
    def forward(biased: bool) -> Build:
        def build(b: Bench) -> Run:
            out_features = b.columns + 3
            x, weight, y = b.array(b.rows, b.columns), b.array(out_features, b.columns), b.empty(b.rows, out_features)
            bias = b.array(out_features) if biased else None
            expected = wide(x) @ wide(weight).T + (0 if bias is None else wide(bias))
            return Run(lambda: b.kernels.linear_forward(y, x, weight, bias), {"output": y}, {"output": expected})

        return build

    def per_channel(biased: bool) -> Build:
        def build(b: Bench) -> Run:
            out_features = b.columns + 3
            x, weight, y = b.array(b.rows, b.columns), b.float8(out_features, b.columns), b.empty(b.rows, out_features)
            scales = b.random.uniform(0.01, 0.1, out_features).astype(np.float32)
            bias = b.array(out_features) if biased else None
            workspace = b.workspace(b.kernels.linear_forward_narrow_workspace(out_features, b.columns))
            expected = wide(x) @ (wide(weight) * wide(scales)[:, None]).T + (0 if bias is None else wide(bias))
            return Run(
                lambda: b.kernels.linear_forward_narrow(y, x, weight, scales, bias, workspace),
                {"output": y},
                {"output": expected},
            )

        return build

    def backward_input(b: Bench) -> Run:
        out_features = b.columns + 3
        dy, weight, dx = b.array(b.rows, out_features), b.array(out_features, b.columns), b.empty(b.rows, b.columns)
        expected = wide(dy) @ wide(weight)
        return Run(lambda: b.kernels.linear_backward_input(dx, dy, weight), {"dx": dx}, {"dx": expected})

    def backward_weight(accumulate: bool) -> Build:
        def build(b: Bench) -> Run:
            out_features = b.columns + 3
            dy, x = b.array(b.rows, out_features), b.array(b.rows, b.columns)
            dweight = (b.array if accumulate else b.empty)(out_features, b.columns)
            size = b.kernels.linear_backward_weight_workspace(b.rows, out_features, b.columns)
            workspace = b.workspace(size)
            expected = wide(dy).T @ wide(x) + (wide(dweight) if accumulate else 0)
            return Run(
                lambda: b.kernels.linear_backward_weight(dweight, dy, x, accumulate, workspace),
                {"dweight": dweight},
                {"dweight": expected},
            )

        return build

    def backward_bias(accumulate: bool) -> Build:
        def build(b: Bench) -> Run:
            dy = b.array(b.rows, b.columns)
            dbias = (b.array if accumulate else b.empty)(b.columns)
            workspace = b.workspace(b.kernels.linear_backward_bias_workspace(b.rows, b.columns))
            expected = wide(dy).sum(axis=0) + (wide(dbias) if accumulate else 0)
            return Run(
                lambda: b.kernels.linear_backward_bias(dbias, dy, accumulate, workspace),
                {"dbias": dbias},
                {"dbias": expected},
            )

        return build

    yield Case("linear_backward_input", backward_input)
    for option in (False, True):
        yield Case(f"linear_forward-bias={option}", forward(option))
        yield Case(f"linear_forward_narrow-bias={option}", per_channel(option))
        yield Case(f"linear_backward_weight-accumulate={option}", backward_weight(option))
        yield Case(f"linear_backward_bias-accumulate={option}", backward_bias(option))
