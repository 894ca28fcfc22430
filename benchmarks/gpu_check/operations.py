"""How many operations models and attention take by their formulas, and how many devices are built for."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu_check.settings import AttentionSizes
from mila.models import GptConfig

#: Dense bfloat16 products per second by the makers' data sheets (without sparsity); the first name that fits counts.
PEAKS = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H200 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("GH200", 989e12),
    ("B200", 2250e12),
    ("A100", 312e12),
)


@dataclass(frozen=True)
class Peak:
    """The most bfloat16 operations per second, and where the number comes from."""

    operations: float
    source: str


def peak_of(device_name: str, measured: float) -> Peak:
    """What a device is built for; of an unknown device what a large product reached."""
    for name, operations in PEAKS:
        if name in device_name:
            return Peak(operations, f"data sheet of {name}")
    return Peak(measured, "largest product by cuBLAS here")


def attention_operations(sizes: AttentionSizes, causal: bool, backward: bool = False) -> int:
    """Multiplications and additions of attention: two products forward, five backward, over the pairs that count."""
    pairs = sizes.length * (sizes.length + 1) // 2 if causal else sizes.length**2
    products = 5 if backward else 2
    return 2 * products * sizes.rows * sizes.heads * pairs * sizes.head_dim


def training_operations(config: GptConfig, length: int) -> int:
    """Operations of a training step for each token: ``6 P + 12 L C T``, as PaLM counts (Chowdhery et al. 2022).

    P: parameters that take part in products, the head included, tied or not: ``L (4 C² + 2 C F) + C V``. A product
    takes two operations per parameter and token forward and four backward; attention is counted without the mask.
    """
    width, layers = config.embedding_dim, config.num_layers
    hidden = config.hidden_dim or 4 * width
    parameters = layers * (4 * width**2 + 2 * width * hidden) + width * config.vocab_size
    return 6 * parameters + 12 * layers * width * length
