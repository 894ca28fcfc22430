"""How much memory a process holds before anything is built: interpreter, libraries, and the graph of a model.

    python -m benchmarks.resident_baseline

A new process imports Mila, constructs a training step of GPT-2 124M, plans it, and looks at its resident memory; then
at how far that grows over products of square matrices, and over that of the gradient of GPT-2's head with 2,048 rows,
in training: that is what BLAS keeps for itself. ``mila/planning/elsewhere.py`` has these figures.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np

from benchmarks.machine import openblas, processor

_PROGRAM = """
import numpy as np

import mila.generation
from benchmarks.machine import memory_line
from mila import BuildContext, RuntimeMode, TrainingStep
from mila.components import SoftmaxCrossEntropy
from mila.models import GptConfig, GptTransformer
from mila.training import AdamW

config = GptConfig(vocab_size=50257, embedding_dim=768, num_layers=12, num_heads=12, max_seq_len=1024)
network = GptTransformer("gpt", config, device="cpu")
step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
step.plan(BuildContext((1, 1024), RuntimeMode.TRAINING))
planned = memory_line("VmRSS")
taken = 0
for size in (1024, 2048, 4096):
    matrices = [np.ones((size, size), np.float32) for _ in range(3)]
    before = memory_line("VmRSS")
    for _ in range(3):
        np.matmul(matrices[0], matrices[1], out=matrices[2])
    taken += memory_line("VmRSS") - before
gradient, activations = np.ones((2048, 50257), np.float32), np.ones((2048, 768), np.float32)
weight_gradient = np.ones((50257, 768), np.float32)
before = memory_line("VmRSS")
np.matmul(gradient.T, activations, out=weight_gradient)
print(planned, taken, taken + memory_line("VmRSS") - before)
"""


def measure() -> tuple[int, int, int]:
    """Resident bytes before anything is built, and what products add to them: square ones, and a tall one too."""
    completed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    planned, square, tall = map(int, completed.stdout.split())
    return planned, square, tall


def main() -> None:
    """Measure and print."""
    planned, square, tall = measure()
    print(f"{processor()}, CPython {platform.python_version()}, NumPy {np.__version__}, {openblas()}")
    print(f"interpreter, libraries and a planned graph: {planned:,} bytes")
    print(f"buffers of BLAS: {square:,} bytes after square products, {tall:,} after a tall one")


if __name__ == "__main__":
    main()
