"""The three processes that ``benchmarks.generate`` lets take turns: Mila, transformers, and a plain PyTorch loop."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.generate_cases import CASES, CONTEXT, THREADS, GenerationCase
from benchmarks.machine import memory_line, openblas, openblas_environment


class Worker(Protocol):
    """One side."""

    #: Resident memory once everything is imported.
    import_bytes: int

    def generate(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """Greedy tokens after ``prompt``, from an empty cache, and the moment at which each was there."""

    def details(self) -> dict[str, Any]:
        """Versions and settings."""


class MilaWorker:
    """``network.generate``."""

    def __init__(self, case: GenerationCase, folder: Path) -> None:
        import mila

        self.import_bytes = memory_line("VmRSS")
        self.network = mila.from_pretrained(folder, context_length=CONTEXT)
        threads = self.network.get_execution_context().threads
        if threads != THREADS:
            raise RuntimeError(f"expected {THREADS} processors, got {threads}; see taskset")
        context = self.network.build_context
        assert context is not None
        self.plan = self.network.plan(context)

    def generate(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """The session is emptied first: it would reuse the prompt."""
        moments: list[float] = []
        self.network.decoding_session.reset()
        completion = self.network.generate(
            prompt, max_new_tokens=count, on_token=lambda row, token: moments.append(time.perf_counter())
        )
        return list(completion.tokens), moments

    def details(self) -> dict[str, Any]:
        """Versions, BLAS, and the bytes that the plan promised."""
        import numpy as np

        import mila

        return {
            "versions": {"mila": mila.__version__, "numpy": np.__version__, "python": sys.version.split()[0]},
            "openblas": openblas(),
            "environment": openblas_environment(),
            "reserved_bytes": self.plan.reserved_bytes,
            "arenas": dict(self.plan.arena_bytes),
        }


class TransformersWorker:
    """``model.generate``, eager attention."""

    def __init__(self, case: GenerationCase, folder: Path) -> None:
        import torch
        import transformers

        self.import_bytes = memory_line("VmRSS")
        torch.set_num_threads(THREADS)
        self._torch, self._version = torch, transformers.__version__
        model_class = getattr(transformers, case.model_class)
        self.model = model_class.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()

    def generate(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """With a streamer that notes the time."""
        streamer = _Moments()
        ids = self._torch.tensor([prompt])
        with self._torch.inference_mode():
            made = self.model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                streamer=streamer,
            )
        return made[0, len(prompt) :].tolist(), streamer.moments

    def details(self) -> dict[str, Any]:
        """Versions."""
        return {"versions": {"torch": self._torch.__version__, "transformers": self._version}}


class _Moments:
    """A streamer for transformers: the prompt comes first, then every token."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self._is_prompt = True

    def put(self, value: Any) -> None:
        """Note the time of a token."""
        if not self._is_prompt:
            self.moments.append(time.perf_counter())
        self._is_prompt = False

    def end(self) -> None:
        """Nothing is left to do."""


class PlainWorker:
    """``benchmarks.torch_decoders``."""

    def __init__(self, case: GenerationCase, folder: Path) -> None:
        import torch

        from benchmarks.torch_decoders import plain_decoder

        self.import_bytes = memory_line("VmRSS")
        torch.set_num_threads(THREADS)
        self._torch = torch
        self.decoder = plain_decoder(folder, case.model_class, case.fields, CONTEXT)

    def generate(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """Prefill at once, then one token after the other."""
        token = self.decoder.forward(prompt, 0)
        tokens, moments = [token], [time.perf_counter()]
        for position in range(len(prompt), len(prompt) + count - 1):
            token = self.decoder.forward([token], position)
            tokens.append(token)
            moments.append(time.perf_counter())
        return tokens, moments

    def details(self) -> dict[str, Any]:
        """Versions."""
        return {"versions": {"torch": self._torch.__version__}}


WORKERS: dict[str, Callable[[GenerationCase, Path], Worker]] = {
    "mila": MilaWorker,
    "transformers": TransformersWorker,
    "plain": PlainWorker,
}


def answer(worker: Worker, case: GenerationCase, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command: ``generate``, ``memory`` or ``details``."""
    if command["do"] == "generate":
        prompt = case.draw_tokens(command["prompt_tokens"])
        start = time.perf_counter()
        tokens, moments = worker.generate(prompt, command["count"])
        steps = [1e3 * (after - before) for before, after in itertools.pairwise(moments)]
        return {"tokens": tokens, "first_ms": 1e3 * (moments[0] - start), "step_ms": steps}
    if command["do"] == "memory":
        peak = memory_line("VmHWM")
        return {"peak_bytes": peak, "net_bytes": peak - worker.import_bytes}
    return worker.details()


def main() -> None:
    """``python -m benchmarks.generate_workers (mila | transformers | plain) CASE FOLDER``."""
    side, case_name, folder = sys.argv[1:]
    case = CASES[case_name]
    worker: Worker = WORKERS[side](case, Path(folder))
    print(json.dumps({"ready": side}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(worker, case, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
