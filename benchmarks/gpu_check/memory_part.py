"""Part: what builds and steps take of the pool and of the driver, beside what plans reserve."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.decoding_part import construct
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.training_part import LEARNING_RATE
from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, Component, RuntimeMode, TrainingStep
from mila.models import GptConfig, GptTransformer
from mila.training import AdamW


def measure(settings: Settings) -> Iterator[Row]:
    """A training step and a decoder; a ratio of 1 says that the pool gave exactly what the plan reserves."""
    bench = Bench(settings)
    yield from _training(bench)
    yield from _inference(bench)


def _training(bench: Bench) -> Iterator[Row]:
    settings = bench.settings
    config = GptConfig(**dict(settings.gpt))
    network = GptTransformer("gpt", config, dtype=settings.dtype, seed=0)
    network.set_execution_context(bench.context)
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
    shape = settings.batch, settings.length
    ids = bench.device.to_device(np.random.default_rng(0).integers(0, config.vocab_size, shape).astype(np.int32))

    def run() -> None:
        step.forward(ids, ids)
        step.zero_gradients()
        step.backward(ids, ids)
        step.update(LEARNING_RATE)

    what = f"training step B={shape[0]} T={shape[1]} {settings.dtype}"
    yield from growth_rows(bench, what, step, BuildContext(shape, RuntimeMode.TRAINING), run)


def _inference(bench: Bench) -> Iterator[Row]:
    settings, sizes = bench.settings, bench.settings.decoders[0]
    network = construct(sizes, settings)
    network.set_execution_context(bench.context)
    rows = max(sizes.rows)
    shape = rows, sizes.prompt + 1

    def run() -> None:
        network.prefill([[0] * sizes.prompt] * rows)
        network.decode([0] * rows)

    context = BuildContext(shape, RuntimeMode.INFERENCE, initialize_parameters=True)
    yield from growth_rows(bench, f"{sizes.name} for decoding B={rows} {settings.dtype}", network, context, run)


def growth_rows(
    bench: Bench, what: str, component: Component[Any], context: BuildContext, run: Callable[[], None]
) -> Iterator[Row]:
    """Growth over a build, and over steps after it."""
    reserved = component.plan(context).reserved_bytes
    gc.collect()
    bench.release()
    used, free = _state(bench)
    component.build(context)
    built_used, built_free = _state(bench)
    yield _row(f"{what}, build, pool", built_used - used, reserved, goal=1.0)
    yield _row(f"{what}, build, driver", free - built_free, reserved)
    before = _state(bench)
    for name, remark in (("first", "kernels are loaded now, and inputs are kept"), ("second", "expected 0 of both")):
        run()
        after = _state(bench)
        pool, driver = after[0] - before[0], before[1] - after[1]
        measured = f"{pool:+,} bytes of the pool, {driver:+,} of the driver"
        yield Row(f"{what}, {name} step", measured, remark, figures={"pool_bytes": pool, "driver_bytes": driver})
        before = after


def _state(bench: Bench) -> tuple[int, int]:
    """Bytes in use of the pool, and bytes that the driver still has."""
    import cupy

    bench.device.synchronize()
    with cupy.cuda.Device(bench.device.device_id.index):
        free, _ = cupy.cuda.runtime.memGetInfo()
    return bench.device.used_bytes(), int(free)


def _row(what: str, grown: int, reserved: int, goal: float | None = None) -> Row:
    beside = f"plan {reserved:,} bytes{', equal' if grown == reserved else ''}"
    # More than the plan misses the goal as much as less does.
    ratio = min(grown, reserved) / max(grown, reserved) if reserved and grown > 0 else None
    return Row(what, f"{grown:+,} bytes", beside, ratio, goal, {"grown_bytes": grown, "reserved_bytes": reserved})
