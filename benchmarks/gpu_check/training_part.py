"""Part: a training step beside PyTorch, eager and compiled."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.machine_part import device_name
from benchmarks.gpu_check.operations import Peak, peak_of, training_operations
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.timing import Clock
from benchmarks.gpu_check.torch_side import TorchSide, find_torch
from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, RuntimeMode, TrainingStep
from mila.kernels.signatures import Array
from mila.models import GptConfig, GptTransformer
from mila.training import AdamW, AdamWConfig

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.1


def measure(settings: Settings) -> Iterator[Row]:
    """Mila first, then PyTorch from the same weights; a ratio is Mila's tokens per second divided by PyTorch's."""
    bench = Bench(settings)
    peak = peak_of(device_name(bench), bench.product_rate(np.dtype(settings.dtype)))
    config = GptConfig(**dict(settings.gpt))
    shape = (2, settings.batch, settings.length)
    batch = np.random.default_rng(0).integers(0, config.vocab_size, shape).astype(np.int32)
    report = _Report(settings, config, peak)
    losses: list[float] = []
    parameters: dict[str, Array] = {}
    run = _mila_step(bench, config, batch, parameters)
    milliseconds = _median_step(bench.clock, run, settings, losses)
    ours = report.tokens_per_second(milliseconds)
    yield from report.rows("Mila", milliseconds, losses[0])
    del run
    gc.collect()
    bench.release()
    torch_side = find_torch(settings)
    if isinstance(torch_side, str):
        yield Row("PyTorch", torch_side)
        return
    for name in ("eager", "compiled") if settings.compile_model else ("eager",):
        try:
            losses = []
            run = _torch_step(torch_side, config, batch, parameters, compiled=name == "compiled")
            milliseconds = _median_step(torch_side.clock, run, settings, losses)
        except Exception as error:  # a compiler needs more than a device
            yield Row(f"PyTorch {name}", f"failed: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        yield from report.rows(f"PyTorch {name}", milliseconds, losses[0])
        theirs = report.tokens_per_second(milliseconds)
        yield Row(
            f"Mila beside PyTorch {name}", f"{ours:,.0f} tokens/s", f"PyTorch {theirs:,.0f} tokens/s", ours / theirs
        )
        del run


class _Report:
    """What a time of a step means."""

    def __init__(self, settings: Settings, config: GptConfig, peak: Peak) -> None:
        self._tokens = settings.batch * settings.length
        self._operations = training_operations(config, settings.length)
        self._peak = peak
        self._what = f"B={settings.batch} T={settings.length} {settings.dtype}"

    def tokens_per_second(self, milliseconds: float) -> float:
        """B T per step."""
        return 1e3 * self._tokens / milliseconds

    def rows(self, side: str, milliseconds: float, loss: float) -> Iterator[Row]:
        """Tokens per second, and the share of the device's operations."""
        rate = self.tokens_per_second(milliseconds)
        figures = {"milliseconds": milliseconds, "tokens_per_second": rate, "first_loss": loss}
        yield Row(
            f"{side}, training step {self._what}",
            f"{rate:,.0f} tokens/s",
            f"{milliseconds:.1f} ms; loss of the first step {loss:.4f}",
            figures=figures,
        )
        operations = rate * self._operations
        yield Row(
            f"{side}, model FLOP utilisation",
            f"{operations / 1e12:,.3g} TFLOP/s",
            f"{self._operations:,} per token; peak {self._peak.operations / 1e12:,.4g} TFLOP/s ({self._peak.source})",
            operations / self._peak.operations,
            figures={"operations_per_token": self._operations, "operations_per_second": operations},
        )


def _median_step(clock: Clock, run: Callable[[], float], settings: Settings, losses: list[float]) -> float:
    """The median time of a step, with the pauses in which the device waits for the host; notes every loss."""
    times = []
    for index in range(settings.warmups + settings.steps):
        start = clock.mark()
        losses.append(run())
        stop = clock.mark()
        clock.synchronize()
        if index >= settings.warmups:
            times.append(clock.milliseconds(start, stop))
    return statistics.median(times)


def _mila_step(bench: Bench, config: GptConfig, batch: Array, parameters: dict[str, Array]) -> Callable[[], float]:
    """A step of Mila that gives its loss; fills ``parameters`` with what it starts from."""
    network = GptTransformer("gpt", config, dtype=bench.settings.dtype, seed=0)
    network.set_execution_context(bench.context)
    optimizer = AdamW(AdamWConfig(weight_decay=WEIGHT_DECAY))
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), optimizer)
    step.build(BuildContext(batch.shape[1:], RuntimeMode.TRAINING))
    for name, array in zip(network.get_parameter_names(), network.get_parameters(), strict=True):
        parameters[name] = bench.device.download(array).astype(np.float32)
    ids, targets = (bench.device.to_device(np.ascontiguousarray(part)) for part in batch)

    def run() -> float:
        loss = float(bench.device.download(step.forward(ids, targets))[0])
        step.zero_gradients()
        step.backward(ids, targets)
        step.update(LEARNING_RATE)
        return loss

    return run


def _torch_step(
    side: TorchSide, config: GptConfig, batch: Array, parameters: dict[str, Array], compiled: bool
) -> Callable[[], float]:
    """The same of PyTorch: everything in the stored dtype, fused AdamW."""
    from benchmarks.gpu_check.torch_gpt import PlacedGpt
    from tests.parity.torch_models import cross_entropy, decay_groups, load_parameters

    model: Any = PlacedGpt(config)
    load_parameters(model, parameters)
    model.to(device=side.device, dtype=side.dtype)
    optimizer = side.torch.optim.AdamW(decay_groups(model, WEIGHT_DECAY), lr=LEARNING_RATE, fused=True)
    ids, targets = side.torch.from_numpy(batch).long().to(side.device)

    def loss_of(ids: Any, targets: Any) -> Any:
        return cross_entropy(model(ids), targets)

    forward = side.torch.compile(loss_of) if compiled else loss_of

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(ids, targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return run
