"""Cases of cross-entropy and of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels import references
from tests.kernels.bench import Bench, Build, Case, Run, wide


def _targets(b: Bench, ignore_index: int | None, dtype: str) -> Array:
    targets = b.random.integers(0, b.columns, b.rows).astype(dtype)
    if ignore_index is not None:
        targets[::3] = ignore_index
    return targets


def loss_cases() -> Iterator[Case]:
    """Cross-entropy without ignored targets, and with an ignored index inside or outside the vocabulary."""

    def forward(ignore_index: int | None, dtype: str) -> Build:
        def build(b: Bench) -> Run:
            logits, targets = b.array(b.rows, b.columns) * b.dtype.type(3), _targets(b, ignore_index, dtype)
            loss, sums = b.empty(1), b.empty(b.rows)
            workspace = b.workspace(b.kernels.cross_entropy_forward_workspace(b.rows, b.columns))
            expected_sums = references.log_sum_exp(wide(logits))
            valid = np.flatnonzero(targets != ignore_index) if ignore_index is not None else np.arange(b.rows)
            losses = expected_sums[valid] - wide(logits)[valid, targets[valid]]
            expected = losses.mean() if valid.size else 0.0
            return Run(
                lambda: b.kernels.cross_entropy_forward(loss, sums, logits, targets, ignore_index, workspace),
                {"loss": loss, "log_sum_exp": sums},
                {"loss": np.array([expected]), "log_sum_exp": expected_sums},
            )

        return build

    def backward(ignore_index: int | None, dtype: str) -> Build:
        def build(b: Bench) -> Run:
            logits, targets = b.array(b.rows, b.columns), _targets(b, ignore_index, dtype)
            dlogits = logits if b.alias == "logits" else b.empty(b.rows, b.columns)
            dloss = np.array([-1.7], b.dtype)
            sums = references.log_sum_exp(wide(logits))
            expected = np.exp(wide(logits) - sums[:, None])
            valid = np.flatnonzero(targets != ignore_index) if ignore_index is not None else np.arange(b.rows)
            expected[valid, targets[valid]] -= 1
            expected[np.setdiff1d(np.arange(b.rows), valid)] = 0
            expected *= float(dloss[0]) / max(1, valid.size)
            saved = b.statistics(sums)
            return Run(
                lambda: b.kernels.cross_entropy_backward(dlogits, saved, dloss, logits, targets, ignore_index),
                {"dlogits": dlogits},
                {"dlogits": expected},
            )

        return build

    for ignore_index in (None, 0, -100):
        for dtype in ("int32", "int64"):
            options = f"ignore={ignore_index}-{dtype}"
            yield Case(f"cross_entropy_forward-{options}", forward(ignore_index, dtype))
            yield Case(f"cross_entropy_backward-{options}", backward(ignore_index, dtype), ("logits",))


def optimizer_cases() -> Iterator[Case]:
    """AdamW at a first and a later step, with and without decay and gradient scale; the norm."""

    def adamw(step: int, weight_decay: float, gradient_scale: float) -> Build:
        def build(b: Bench) -> Run:
            size = b.rows * b.columns
            p, g, m, v = b.array(size), b.array(size), b.array(size), np.abs(b.array(size))
            rate, beta1, beta2, epsilon = 0.01, 0.9, 0.95, 1e-6
            mean = beta1 * wide(m) * (1 - beta1) + (1 - beta1) * gradient_scale * wide(g)
            square = beta2 * wide(v) * (1 - beta2) + (1 - beta2) * (gradient_scale * wide(g)) ** 2
            update = (mean / (1 - beta1**step)) / (np.sqrt(square / (1 - beta2**step)) + epsilon)
            expected = wide(p) * (1 - rate * weight_decay) - rate * update
            workspace = b.workspace(b.kernels.adamw_workspace(size, b.dtype))
            hyper = rate, beta1, beta2, epsilon, weight_decay, step, gradient_scale
            return Run(
                lambda: b.kernels.adamw(p, m, v, g, *hyper, workspace),
                {"parameters": p, "first": m, "second": v, "gradients": g},
                {
                    "parameters": expected,
                    "first": mean / (1 - beta1),
                    "second": square / (1 - beta2),
                    "gradients": wide(g),
                },
            )

        return build

    def norm(magnitude: float) -> Build:
        def build(b: Bench) -> Run:
            scale = 1.0 if b.dtype == np.float16 else magnitude  # beyond its range
            gradients, result = b.array(b.rows * b.columns) * b.dtype.type(scale), b.empty(1)

            def call() -> None:
                result[0] = b.kernels.global_norm(gradients) / scale

            return Run(call, {"norm": result}, {"norm": np.sqrt(((wide(gradients) / scale) ** 2).sum())[None]})

        return build

    def finite(b: Bench) -> Run:
        x, result = b.array(b.rows * b.columns), b.empty(1)

        def call() -> None:
            result[0] = b.kernels.first_non_finite(x)

        return Run(call, {"index": result}, {"index": np.array([-1.0])})

    def extremes(b: Bench) -> Run:
        ids, result = b.random.integers(-5, 2**40, (b.rows, b.columns)), b.empty(2)

        def call() -> None:
            low, high = b.kernels.integer_range(ids)
            result[:] = low / 2**40, high / 2**40

        expected = np.array([ids.min(), ids.max()]) / 2**40 if ids.size else np.array([0, -1]) / 2**40
        return Run(call, {"range": result}, {"range": expected})

    for step in (1, 9):
        for weight_decay in (0.0, 0.1):
            for gradient_scale in (1.0, 0.25):
                name = f"adamw-step={step}-decay={weight_decay}-scale={gradient_scale}"
                yield Case(name, adamw(step, weight_decay, gradient_scale), elementwise=True)
    yield Case("global_norm", norm(1.0))
    yield Case("global_norm-large", norm(1e25))  # in float32 the squares would be infinity, or vanish
    yield Case("global_norm-small", norm(1e-25))
    yield Case("first_non_finite", finite, elementwise=True)
    yield Case("integer_range", extremes, elementwise=True)
