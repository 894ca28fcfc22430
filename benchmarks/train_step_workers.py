"""The two processes that ``benchmarks.train_step`` lets take turns: one runs Mila, the other PyTorch.

A worker reads one JSON command per line and answers each with one line. While it waits it sleeps, so that the thread
pools of the two libraries never compete. PyTorch is eager, with ``scaled_dot_product_attention`` and fused AdamW.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.machine import memory_line, openblas, openblas_environment

#: Kernels whose time is spent in BLAS, almost all of it.
MATRIX_KERNELS = ("linear_", "attention_")


class Worker(Protocol):
    """One side: it can run a step, and say what it is."""

    #: Resident memory once everything is imported, and how much of it is there for the benchmark's sake only.
    import_bytes: int
    foreign_bytes: int

    def step(self) -> float:
        """One training step; returns its loss before the update."""

    def profile(self, steps: int) -> dict[str, Any]:
        """Where the time of a step goes."""

    def details(self) -> dict[str, Any]:
        """Versions and settings."""


class MilaWorker:
    """A ``TrainingStep``; writes its initial weights to ``weights``."""

    def __init__(self, case_name: str, weights: Path) -> None:
        from benchmarks.train_step_cases import CASES, LEARNING_RATE, THREADS, WEIGHT_DECAY
        from mila import BuildContext, ExecutionContext, RuntimeMode, TrainingStep
        from mila.components import SoftmaxCrossEntropy
        from mila.models import GptTransformer
        from mila.training.adamw import AdamW, AdamWConfig

        self.import_bytes, self.foreign_bytes = memory_line("VmRSS"), 0
        case = CASES[case_name]
        network = GptTransformer("gpt", case.config, seed=0)
        network.set_execution_context(ExecutionContext("cpu", threads=THREADS))
        optimizer = AdamW(AdamWConfig(weight_decay=WEIGHT_DECAY))
        self.training_step = TrainingStep(network, SoftmaxCrossEntropy("loss"), optimizer)
        context = BuildContext((case.batch, case.length), RuntimeMode.TRAINING)
        self.reserved_bytes = self.training_step.plan(context).reserved_bytes
        self.training_step.build(context)
        network.save_weights(weights)
        self._ids, self._targets = case.draw_tokens()
        self._learning_rate = LEARNING_RATE
        self._steps = 0
        self._seconds: dict[str, float] = {}

    def step(self) -> float:
        """Forward, backward, zero, update."""
        step, index = self.training_step, self._steps % len(self._ids)
        ids, targets = self._ids[index], self._targets[index]
        self._steps += 1
        loss = float(step.forward(ids, targets)[0])
        step.zero_gradients()
        step.backward(ids, targets)
        step.update(self._learning_rate)
        return loss

    def profile(self, steps: int) -> dict[str, Any]:
        """Milliseconds per step in each kernel, and outside of all kernels."""
        from mila.kernels.signatures import Kernels

        names = [
            name
            for name in dir(Kernels)
            if not name.startswith("_") and not name.endswith("_workspace") and callable(getattr(Kernels, name))
        ]
        kernels: Any = self.training_step.get_execution_context().kernels
        self._seconds = dict.fromkeys(names, 0.0)
        for name in names:
            setattr(kernels, name, self._timed(name, getattr(kernels, name)))
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        total = time.perf_counter() - start
        for name in names:
            delattr(kernels, name)
        inside = {name: 1e3 * seconds / steps for name, seconds in self._seconds.items() if seconds}
        ordered = dict(sorted(inside.items(), key=lambda item: -item[1]))
        matrix = sum(value for name, value in inside.items() if name.startswith(MATRIX_KERNELS))
        total_ms = 1e3 * total / steps
        return {
            "step_ms": total_ms,
            "kernels_ms": ordered,
            "outside_kernels_ms": total_ms - sum(inside.values()),
            "matrix_share": matrix / total_ms,
        }

    def _timed(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = kernel(*arguments)
            self._seconds[name] += time.perf_counter() - start
            return result

        return timed

    def details(self) -> dict[str, Any]:
        """Versions, BLAS, threads, and the bytes that the plan promised."""
        import numpy as np

        import mila

        return {
            "versions": {"mila": mila.__version__, "numpy": np.__version__, "python": sys.version.split()[0]},
            "openblas": openblas(),
            "environment": openblas_environment(),
            "reserved_bytes": self.reserved_bytes,
        }


class TorchWorker:
    """PyTorch's eager training step, started from the weights that Mila wrote."""

    def __init__(self, case_name: str, weights: Path) -> None:
        import torch

        with_torch = memory_line("VmRSS")
        from safetensors.numpy import load_file

        from benchmarks.train_step_cases import CASES, LEARNING_RATE, THREADS, WEIGHT_DECAY
        from tests.parity.torch_models import TorchGpt, cross_entropy, decay_groups, load_parameters

        self.import_bytes = with_torch
        self.foreign_bytes = memory_line("VmRSS") - with_torch  # Mila's configs, which only the benchmark needs
        torch.set_num_threads(THREADS)
        case = CASES[case_name]
        self.model = TorchGpt(case.config)
        load_parameters(self.model, load_file(weights))
        groups = decay_groups(self.model, WEIGHT_DECAY)
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)
        self._ids, self._targets = torch.from_numpy(case.draw_tokens()).long()
        self._cross_entropy = cross_entropy
        self._steps = 0

    def step(self) -> float:
        """Zero, forward, backward, update."""
        index = self._steps % len(self._ids)
        self._steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._cross_entropy(self.model(self._ids[index]), self._targets[index])
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def profile(self, steps: int) -> dict[str, Any]:
        """Nothing: the profile is of Mila."""
        return {}

    def details(self) -> dict[str, Any]:
        """Version and threads."""
        import torch

        return {"versions": {"torch": torch.__version__}, "threads": torch.get_num_threads()}


def run_turn(worker: Worker, steps: int) -> dict[str, list[float]]:
    """Milliseconds and loss of each of ``steps`` steps."""
    milliseconds, losses = [], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(worker.step())
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return {"milliseconds": milliseconds, "losses": losses}


def answer(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command: ``run``, ``profile``, ``memory`` or ``details``."""
    if command["do"] == "run":
        return run_turn(worker, command["steps"])
    if command["do"] == "profile":
        return worker.profile(command["steps"])
    if command["do"] == "memory":
        peak = memory_line("VmHWM") - worker.foreign_bytes
        return {"peak_bytes": peak, "net_bytes": peak - worker.import_bytes}
    return worker.details()


def main() -> None:
    """``python -m benchmarks.train_step_workers (mila | torch) CASE WEIGHTS``."""
    side, case_name, weights = sys.argv[1:]
    worker_class = MilaWorker if side == "mila" else TorchWorker
    worker: Worker = worker_class(case_name, Path(weights))
    print(json.dumps({"ready": side}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(worker, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
