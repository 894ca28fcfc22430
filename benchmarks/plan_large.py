"""How long it takes, and how much memory, to construct and plan models that would not fit this machine.

    python -m benchmarks.plan_large [--json]

Llama 3.1 70B and 405B, and a model of 1,024 layers, are constructed (nothing is allocated) and planned for inference
and for one training step with AdamW. Time is taken in one pass, the peak of the memory of Python objects
(``tracemalloc``) in another, because tracing slows Python down.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.machine import markdown_table, processor
from mila import BuildContext, Component, MemoryPlan, RuntimeMode, TrainingStep, format_bytes
from mila.components import SoftmaxCrossEntropy
from mila.models import LlamaConfig, LlamaTransformer
from mila.training.adamw import AdamW

ResultT = TypeVar("ResultT")

#: Those of Meta as published, and one that is deeper than any; stored as float32 here, what the CPU computes in.
MODELS = {
    "Llama 3.1 70B": LlamaConfig(
        vocab_size=128256,
        embedding_dim=8192,
        hidden_dim=28672,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        max_seq_len=131072,
        rope_theta=500000.0,
    ),
    "Llama 3.1 405B": LlamaConfig(
        vocab_size=128256,
        embedding_dim=16384,
        hidden_dim=53248,
        num_layers=126,
        num_heads=128,
        num_kv_heads=8,
        max_seq_len=131072,
        rope_theta=500000.0,
    ),
    "1,024 layers": LlamaConfig(
        vocab_size=32000,
        embedding_dim=1024,
        hidden_dim=2816,
        num_layers=1024,
        num_heads=16,
        num_kv_heads=4,
        max_seq_len=131072,
    ),
}
CONTEXTS = {
    RuntimeMode.INFERENCE: BuildContext((1, 131072), RuntimeMode.INFERENCE),
    RuntimeMode.TRAINING: BuildContext((1, 8192), RuntimeMode.TRAINING),
}


def construct(config: LlamaConfig, mode: RuntimeMode) -> Component[Any]:
    """The network, or a training step around it."""
    network = LlamaTransformer("llama", config, device="cpu")
    if mode is RuntimeMode.INFERENCE:
        return network
    return TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())


def seconds_and_result(call: Callable[[], ResultT]) -> tuple[float, ResultT]:
    """How long a call takes, and what it returns."""
    gc.collect()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def peak_bytes(call: Callable[[], object]) -> int:
    """The peak of what Python and NumPy allocate during a call."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure(name: str, mode: RuntimeMode) -> dict[str, Any]:
    """One model in one mode."""
    config, context = MODELS[name], CONTEXTS[mode]
    construct_seconds, component = seconds_and_result(lambda: construct(config, mode))
    plan_seconds, plan = seconds_and_result(lambda: component.plan(context))
    again_seconds, required = seconds_and_result(lambda: component.get_required_memory(context))
    check(plan, required)
    return {
        "model": name,
        "mode": mode.value,
        "shape": context.input_shape,
        "components": sum(1 for _ in component.walk()),
        "parameters": component.parameter_count(),
        "reserved_bytes": plan.reserved_bytes,
        "construct_seconds": construct_seconds,
        "plan_seconds": plan_seconds,
        "required_memory_seconds": again_seconds,
        "construct_peak_bytes": peak_bytes(lambda: construct(config, mode)),
        "plan_peak_bytes": peak_bytes(lambda: component.plan(context)),
    }


def check(plan: MemoryPlan, required: object) -> None:
    """The plan and the required memory are one answer."""
    if plan.stats != required:
        raise RuntimeError(f"{plan.root}: the plan says {plan.stats}, the required memory is {required}")


def report(results: list[dict[str, Any]]) -> str:
    """A table."""
    header = (
        "model",
        "mode",
        "B, T",
        "components",
        "parameters",
        "reserved",
        "construct s",
        "plan s",
        "get_required_memory s",
        "construct peak",
        "plan peak",
    )
    rows = [
        (
            result["model"],
            result["mode"],
            ", ".join(map(str, result["shape"])),
            f"{result['components']:,}",
            f"{result['parameters']:,}",
            format_bytes(result["reserved_bytes"]),
            f"{result['construct_seconds']:.3f}",
            f"{result['plan_seconds']:.3f}",
            f"{result['required_memory_seconds']:.3f}",
            format_bytes(result["construct_peak_bytes"]),
            format_bytes(result["plan_peak_bytes"]),
        )
        for result in results
    ]
    return f"{processor()}\n\n{markdown_table(header, rows)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    results = [measure(name, mode) for name in MODELS for mode in RuntimeMode]
    print(json.dumps(results, indent=2) if arguments.json else report(results))


if __name__ == "__main__":
    main()
