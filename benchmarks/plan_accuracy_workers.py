"""The processes of ``benchmarks.plan_accuracy``: each measures one case on one side, prints one line, and ends.

python -m benchmarks.plan_accuracy_workers (mila | torch | accelerate) CASE
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import memory_line
from benchmarks.plan_accuracy_cases import (
    CASES,
    LEARNING_RATE,
    NEW_TOKENS,
    NO_DROPOUT,
    SEED,
    STEPS,
    THREADS,
    AccuracyCase,
)
from mila.planning import Mode


def run_mila(case: AccuracyCase) -> dict[str, Any]:
    """Plan, build and run: what the plan said, by how much the process grew, and its peak."""
    import numpy as np

    import mila
    from mila import BuildContext, ExecutionContext, TrainingStep
    from mila.planning import plan, read_target
    from mila.planning.building import build_context, construct

    imported = memory_line("VmRSS")
    target = read_target(case.preset)
    report = plan(target, case.request, search=False)
    root: Any = construct(target, report.choices, ExecutionContext("cpu", threads=THREADS))
    asked = build_context(report.choices)
    context = BuildContext(
        asked.input_shape, asked.runtime_mode, prefill_size=asked.prefill_size, initialize_parameters=True
    )
    if root.plan(context).reserved_bytes != report.reserved_bytes:
        raise RuntimeError(f"{case.name}: the plan and the build differ")
    gc.collect()
    before = memory_line("VmRSS")
    root.build(context)
    gc.collect()
    grown = memory_line("VmRSS") - before
    if isinstance(root, TrainingStep):
        ids, targets = case.draw_batch()
        for _ in range(STEPS):
            root.forward(ids, targets)
            root.zero_gradients()
            root.backward(ids, targets)
            root.update(LEARNING_RATE)
    else:
        root.generate(case.draw_prompt(), max_new_tokens=NEW_TOKENS)
    peak = memory_line("VmHWM")
    return {
        "reserved_bytes": report.reserved_bytes,
        "elsewhere_bytes": {line.key: line.bytes for line in report.elsewhere},
        "needed_bytes": report.verdict.needed_bytes,
        "import_bytes": imported,
        "build_growth_bytes": grown,
        "peak_bytes": peak,
        "net_peak_bytes": peak - imported,
        "versions": {"mila": mila.__version__, "numpy": np.__version__, "python": sys.version.split()[0]},
    }


def forget_peak() -> None:
    """From here on ``VmHWM`` counts anew (Linux, see proc_pid_clear_refs(5))."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def run_torch(case: AccuracyCase) -> dict[str, Any]:
    """Construct the model of transformers with random weights and run it.

    The peak is that of running; ``net`` is without what imports take.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**case.fields)
    for name, value in NO_DROPOUT.items():
        if hasattr(config, name):
            setattr(config, name, value)
    model_class = getattr(transformers, case.fields["architectures"][0])  # imports it
    torch.set_num_threads(THREADS)
    gc.collect()
    imported = memory_line("VmRSS")
    torch.manual_seed(SEED)
    model = model_class._from_config(config, dtype=getattr(torch, case.dtype))
    gc.collect()
    constructed = memory_line("VmHWM") - imported
    forget_peak()
    if case.mode is Mode.TRAINING:
        _train(model, case)
    else:
        _generate(model.eval(), case)
    peak = memory_line("VmHWM")
    return {
        "import_bytes": imported,
        "constructed_bytes": constructed,
        "parameter_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "peak_bytes": peak,
        "net_peak_bytes": peak - imported,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def _train(model: Any, case: AccuracyCase) -> None:
    """Forward, backward, AdamW: fused, as transformers' ``Trainer`` has it."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    ids, targets = (torch.from_numpy(each).long() for each in case.draw_batch())
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        optimizer.step()


def _generate(model: Any, case: AccuracyCase) -> None:
    """Greedy, with the key/value cache that ``generate`` has by default."""
    import torch

    ids = torch.tensor([case.draw_prompt()])
    with torch.inference_mode():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    if made.shape[1] != case.context:
        raise RuntimeError(f"{case.name}: {made.shape[1]} tokens of {case.context}")


def run_accelerate(case: AccuracyCase) -> dict[str, Any]:
    """What ``accelerate estimate-memory`` computes, with the config at hand instead of that of the hub.

    The command makes an ``AutoModel`` without weights, in float32, and derives its other columns from that size; it
    has no column for bfloat16, that of float16 stands in.
    """
    import accelerate
    import torch
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(**case.fields)
    with accelerate.init_empty_weights():
        model = AutoModel.from_config(config, dtype=torch.float32)
    total_size, _ = calculate_maximum_sizes(model)
    column = "float32" if case.dtype == "float32" else "float16"
    inference = total_size if column == "float32" else total_size // 2
    training = max(estimate_training_usage(total_size, column).values())
    return {
        "column": column,
        "estimate_bytes": training if case.mode is Mode.TRAINING else inference,
        "versions": {"accelerate": accelerate.__version__},
    }


SIDES: dict[str, Callable[[AccuracyCase], dict[str, Any]]] = {
    "mila": run_mila,
    "torch": run_torch,
    "accelerate": run_accelerate,
}


def main() -> None:
    """Measure and print."""
    side, name = sys.argv[1:]
    print(json.dumps(SIDES[side](CASES[name])), flush=True)


if __name__ == "__main__":
    main()
