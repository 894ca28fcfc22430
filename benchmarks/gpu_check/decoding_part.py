"""Part: tokens per second of decoding, and the share of the copying rate at which it reads weights and cache."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.kernels_part import copy_row
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import DecoderSizes, Settings
from mila.components import LearnedPositionEncoding, Linear, TokenEmbedding
from mila.core import BuildContext, RuntimeMode
from mila.kernels.signatures import Array
from mila.memory.plan import MemoryPlan
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer


def measure(settings: Settings) -> Iterator[Row]:
    """Each model; a ratio is bytes per second divided by the copying rate."""
    bench = Bench(settings)
    rate = bench.copy_rate()
    yield copy_row(rate)
    for sizes in settings.decoders:
        try:
            yield from _decode(bench, sizes, rate)
        except Exception as error:  # one model that does not fit says nothing of the others
            yield Row(sizes.name, f"failed: {type(error).__name__}: {error}")
        gc.collect()
        bench.release()


def construct(sizes: DecoderSizes, settings: Settings) -> LanguageModel[Any]:
    """The model, unbuilt."""
    if sizes.kind == "gpt":
        return GptTransformer("gpt", GptConfig(**sizes.fields), dtype=settings.dtype, seed=0)
    return LlamaTransformer("llama", LlamaConfig(**sizes.fields), dtype=settings.dtype, seed=0)


def weight_bytes(network: LanguageModel[Any]) -> int:
    """What a step reads of the parameters: all but tables of which it looks up single rows."""
    heads = [part.tied_to for part in network.walk() if isinstance(part, Linear)]
    looked_up = [
        component
        for component in network.walk()
        if isinstance(component, TokenEmbedding | LearnedPositionEncoding) and component not in heads
    ]
    tables = [array for component in looked_up for array in component.get_parameters()]
    return sum(array.nbytes for array in network.get_parameters()) - sum(array.nbytes for array in tables)


def cache_bytes(plan: MemoryPlan, rows: int, positions: float) -> float:
    """What a step of so many rows reads of the caches ``(B, K, S, D)`` when each row holds so many positions."""
    caches = [buffer for buffer in plan.buffers if buffer.name in ("keys", "values") and len(buffer.shape) == 4]
    return sum(buffer.nbytes * (rows / buffer.shape[0]) * min(1.0, positions / buffer.shape[2]) for buffer in caches)


def _decode(bench: Bench, sizes: DecoderSizes, rate: float) -> Iterator[Row]:
    """Build once, for the most rows, and decode for each number of them."""
    settings = bench.settings
    network = construct(sizes, settings)
    network.set_execution_context(bench.context)
    steps = settings.warmups + settings.tokens
    shape = max(sizes.rows), sizes.prompt + steps
    context = BuildContext(shape, RuntimeMode.INFERENCE, initialize_parameters=True)
    plan = network.plan(context)
    network.build(context)
    for rows in sizes.rows:
        what = f"{sizes.name} {settings.dtype} B={rows} prompt {sizes.prompt}"
        prompts = np.random.default_rng(0).integers(0, sizes.fields["vocab_size"], (rows, sizes.prompt))
        seconds = _step_seconds(network, prompts, steps)[settings.warmups :]
        step = statistics.median(seconds)
        figures = {"step_seconds": step, "tokens_per_second": rows / step}
        yield Row(f"{what}, decoding", f"{rows / step:,.0f} tokens/s", f"{1e3 * step:.3f} ms a step", figures=figures)
        weights, cache = weight_bytes(network), cache_bytes(plan, rows, sizes.prompt + steps / 2)
        reached = (weights + cache) / step
        yield Row(
            f"{what}, reading weights and cache",
            f"{reached / 1e9:,.0f} GB/s",
            f"{weights / 1e6:,.1f} + {cache / 1e6:,.1f} MB a step; copy {rate / 1e9:,.0f} GB/s",
            reached / rate,
            figures={"weight_bytes": weights, "cache_bytes": cache, "bytes_per_second": reached},
        )


def _step_seconds(network: LanguageModel[Any], prompts: Array, steps: int) -> list[float]:
    """Seconds of each step; it ends with logits on the host, so that the host's clock is enough."""
    network.decoding_session.reset()
    logits = network.prefill(prompts.tolist())
    seconds = []
    for _ in range(steps):
        tokens = [int(row.argmax()) for row in logits]
        start = time.perf_counter()
        logits = network.decode(tokens)
        seconds.append(time.perf_counter() - start)
    return seconds
