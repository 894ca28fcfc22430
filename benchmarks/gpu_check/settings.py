"""Everything that decides how much is measured, in one object that travels to the parts as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchmarks.gpu_check.requirements import ROOT

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class AttentionSizes:
    """A call of attention: rows B, positions T, query heads H, key/value heads K, elements of a head D."""

    rows: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"B={self.rows} T={self.length} H={self.heads} K={self.kv_heads} D={self.head_dim}"


@dataclass(frozen=True)
class DecoderSizes:
    """A language model that decodes after prompts of so many tokens: once for each number of rows."""

    name: str
    kind: str  # gpt or llama
    fields: dict[str, Any]
    rows: tuple[int, ...]
    prompt: int


_GPT2_124M = {"vocab_size": 50257, "embedding_dim": 768, "num_layers": 12, "num_heads": 12, "max_seq_len": 1024}
_LLAMA_1B = {
    "vocab_size": 128256,
    "embedding_dim": 2048,
    "num_layers": 16,
    "num_heads": 32,
    "num_kv_heads": 8,
    "hidden_dim": 8192,
    "max_seq_len": 4096,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Settings:
    """Sizes and efforts.

    Attributes:
        device: of Mila; ``torch_device``: of PyTorch.
        dtype: of networks and attention; ``kernel_dtypes``: of the kernels that are measured one by one.
        array_bytes: of the largest arrays of each kernel.
        flush_bytes: written between two measurements, so that nothing is left in the cache; meanwhile the host
            gets ahead of the device. At least twice the second-level cache.
        warmups, rounds: calls before those that count, and those whose median counts.
        narrow, wide: row lengths C; ``heads``, ``head_dim``: of packed rows; ``length_of_rows``: positions T of arrays
            (B, T, C).
        vocabulary: of embeddings and losses; ``batch_ids``: ids of an embedding's gradient.
        product_size: of square matrices whose product shows what the device can do.
        attention, decode_attention: calls; of the latter T is what the cache holds.
        gpt: fields of the model that is trained, on batches of ``batch`` rows of ``length`` ids.
        steps: training steps whose median counts; ``compile_model``: whether ``torch.compile`` is tried.
        decoders: models that decode ``tokens`` tokens.
        tests: arguments of pytest; ``test_workers``: processes that share the tests.
    """

    device: str = "cuda:0"
    torch_device: str = "cuda:0"
    dtype: str = "bfloat16"
    kernel_dtypes: tuple[str, ...] = ("bfloat16", "float32")
    array_bytes: int = 256 * MEBIBYTE
    flush_bytes: int = 512 * MEBIBYTE
    warmups: int = 3
    rounds: int = 15
    narrow: int = 768
    wide: int = 4096
    heads: int = 12
    head_dim: int = 64
    length_of_rows: int = 1024
    vocabulary: int = 50257
    batch_ids: tuple[int, ...] = (8192, 65536)
    product_size: int = 8192
    attention: tuple[AttentionSizes, ...] = (
        AttentionSizes(16, 1024, 12, 12, 64),
        AttentionSizes(4, 4096, 12, 12, 64),
        AttentionSizes(4, 2048, 32, 8, 128),
        AttentionSizes(1, 8192, 32, 8, 128),
    )
    decode_attention: tuple[AttentionSizes, ...] = (
        AttentionSizes(1, 4096, 32, 8, 128),
        AttentionSizes(1, 32768, 32, 8, 128),
        AttentionSizes(16, 4096, 32, 8, 128),
    )
    gpt: tuple[tuple[str, Any], ...] = tuple(_GPT2_124M.items())
    batch: int = 16
    length: int = 1024
    steps: int = 10
    compile_model: bool = True
    decoders: tuple[DecoderSizes, ...] = (
        DecoderSizes("GPT-2 124M", "gpt", _GPT2_124M, (1, 16), 512),
        DecoderSizes("Llama 1.2B", "llama", _LLAMA_1B, (1, 16), 1024),
    )
    tokens: int = 64
    tests: tuple[str, ...] = ("-m", "gpu", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "cuda"))
    test_workers: int = 6

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What ``to_json`` wrote."""
        given: dict[str, Any] = json.loads(text)
        for name in ("attention", "decode_attention"):
            given[name] = tuple(AttentionSizes(**sizes) for sizes in given[name])
        given["decoders"] = tuple(
            DecoderSizes(**(sizes | {"rows": tuple(sizes["rows"])})) for sizes in given["decoders"]
        )
        given["gpt"] = tuple((name, value) for name, value in given["gpt"])
        for name in ("kernel_dtypes", "batch_ids", "tests"):
            given[name] = tuple(given[name])
        return cls(**given)
