"""Writes the golden files: what PyTorch computes for every case, in float32 and float64.

    python -m tests.parity.make_golden

writes ``golden/<case>.safetensors`` for the models and ``golden/components.safetensors`` for the single components.
Inputs and initial parameters are stored once, in float32 or int32, and used for both dtypes. Results of models are
stored under ``float32.<name>`` and ``float64.<name>``; those of components in float64 only, which float32 has to come
close to as well. The script is deterministic: inputs are bit-identical on every machine, and
results too with the same PyTorch on the same kind of processor. Attention takes PyTorch's plain formula, not its fused
kernel, whose exponential is an approximation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from safetensors.numpy import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from mila.kernels.signatures import Array
from tests.parity.component_cases import COMPONENT_CASES, draw_component
from tests.parity.model_cases import GOLDEN, MODEL_CASES, ModelCase, draw_parameters, draw_tokens
from tests.parity.torch_components import run_torch_component
from tests.parity.torch_runs import run_torch_model

DTYPES = ("float32", "float64")


def model_tensors(case: ModelCase) -> dict[str, Array]:
    """Everything in the golden file of a model."""
    parameters, tokens = draw_parameters(case), draw_tokens(case)
    tensors = {f"parameter.{name}": array for name, array in parameters.items()} | tokens
    for dtype in DTYPES:
        results = run_torch_model(case, dtype, parameters, tokens)
        tensors |= {f"{dtype}.{name}": array for name, array in results.items()}
    return tensors


def component_tensors() -> dict[str, Array]:
    """Everything in the golden file of the components."""
    tensors: dict[str, Array] = {}
    for case in COMPONENT_CASES:
        drawn = draw_component(case)
        tensors |= {f"{case.name}.{name}": array for name, array in drawn.items()}
        results = run_torch_component(case, "float64", drawn)
        tensors |= {f"{case.name}.float64.{name}": array for name, array in results.items()}
    return tensors


def golden_tensors() -> Iterator[tuple[str, dict[str, Array]]]:
    """Name and tensors of every golden file."""
    with sdpa_kernel(SDPBackend.MATH):
        yield "components", component_tensors()
        for case in MODEL_CASES:
            yield case.name, model_tensors(case)


def main() -> None:
    """Write all files."""
    GOLDEN.mkdir(exist_ok=True)
    for name, tensors in golden_tensors():
        path = GOLDEN / f"{name}.safetensors"
        save_file({key: array.copy(order="C") for key, array in tensors.items()}, path, {"torch": torch.__version__})
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
