"""Generation (batch 1, float32, greedy) of Mila beside transformers' eager ``generate`` and a plain PyTorch loop.

    python -m benchmarks.generate [--quick] [--json] [--case NAME ...]

Needs torch and transformers. Each side lives in a process of its own and they take turns, the order changing from round
to round; a ratio is the median of the ratios of all rounds. Above 1, Mila is faster. All sides load the same folder of
random weights and must give the same tokens.

Decoding reads every weight once per token, so memory bandwidth bounds it: the share is ``weight bytes / time`` against
a copy by two threads that is measured in the same run, once counting what it reads and writes, once what it reads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generate_cases import CASES, PREFILL_TOKENS, PROMPT_TOKENS, THREADS, GenerationCase
from benchmarks.machine import markdown_table, processor
from benchmarks.worker_process import PAUSE, WorkerProcess, mila_environment

MEBIBYTE = 2**20
#: What `mila generate` sets, see `mila.cli.main`.
DECODING_TIMEOUT = "20"
SIDES = ("mila", "transformers", "plain")
#: The program that a user of transformers would write for one token.
TRANSFORMERS_PROGRAM = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(int(sys.argv[3]))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager")
ids = tokenizer(sys.argv[2], return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=1, do_sample=False)[0]), flush=True)
"""
PROMPT = "The first token is the one that everybody waits for."


def measure(case: GenerationCase, rounds: int, tokens: int) -> dict[str, Any]:
    """Everything about one case."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        subprocess.run([sys.executable, "-c", _WRITE, case.name, name], check=True)
        first_token = first_token_seconds(folder, rounds)
        workers = [
            opened.enter_context(
                WorkerProcess(
                    "benchmarks.generate_workers",
                    side,
                    [case.name, name],
                    mila_environment(DECODING_TIMEOUT) if side == "mila" else dict(os.environ),
                )
            )
            for side in SIDES
        ]
        turns = take_turns(workers, rounds, tokens)
        return {
            "case": case.name,
            "weight_bytes": (folder / "model.safetensors").stat().st_size,
            "copy_bytes_per_second": copy_bandwidth(),
            "first_token_seconds": first_token,
            "turns": turns,
            "memory": {worker.side: worker.ask("memory") for worker in workers},
            "details": {worker.side: worker.ask("details") for worker in workers},
        }


_WRITE = """
import sys
from pathlib import Path
from benchmarks.generate_cases import CASES
CASES[sys.argv[1]].write(Path(sys.argv[2]))
"""


def take_turns(workers: list[WorkerProcess], rounds: int, tokens: int) -> list[dict[str, dict[str, Any]]]:
    """For every round and side: milliseconds of a token, milliseconds of a prefill, and the tokens."""
    for worker in workers:
        worker.ask("generate", prompt_tokens=PREFILL_TOKENS, count=4)
    turns = []
    for index in range(rounds):
        turn = {}
        for worker in workers[index % 3 :] + workers[: index % 3]:
            time.sleep(PAUSE)
            decoded = worker.ask("generate", prompt_tokens=PROMPT_TOKENS, count=tokens)
            prefilled = worker.ask("generate", prompt_tokens=PREFILL_TOKENS, count=1)
            late = worker.ask("generate", prompt_tokens=PREFILL_TOKENS, count=tokens // 2)
            turn[worker.side] = {
                "decode_ms": statistics.median(decoded["step_ms"]),
                "late_decode_ms": statistics.median(late["step_ms"]),
                "prefill_ms": prefilled["first_ms"],
                "tokens": decoded["tokens"] + late["tokens"],
            }
        turns.append(turn)
    return turns


def first_token_seconds(folder: Path, rounds: int) -> dict[str, float]:
    """From the start of a fresh process to its first output, files in the page cache."""
    commands = {
        "mila": [sys.executable, "-m", "mila", "generate", str(folder), PROMPT, "--max-new-tokens", "1"],
        "transformers": [sys.executable, "-c", TRANSFORMERS_PROGRAM, str(folder), PROMPT, str(THREADS)],
    }
    seconds: dict[str, list[float]] = {side: [] for side in commands}
    for _ in range(max(3, rounds // 2)):
        for side, command in commands.items():
            start = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                if process.stdout is None or not process.stdout.read(1):
                    raise RuntimeError(f"{side} printed nothing")
                seconds[side].append(time.perf_counter() - start)
                process.stdout.read()
    return {side: statistics.median(values) for side, values in seconds.items()}


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 256 MiB, split over the threads."""
    source, target = np.ones(2**26, np.float32), np.empty(2**26, np.float32)
    seconds = []
    for _ in range(7):
        parts = zip(np.array_split(target, THREADS), np.array_split(source, THREADS), strict=True)
        threads = [threading.Thread(target=np.copyto, args=pair) for pair in parts]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds.append(time.perf_counter() - start)
    return 2 * float(source.nbytes) / statistics.median(seconds)


# ---------------------------------------------------------------------- report


def median_of(result: dict[str, Any], side: str, key: str) -> float:
    """Over the rounds."""
    values: list[float] = [turn[side][key] for turn in result["turns"]]
    return statistics.median(values)


def ratios(result: dict[str, Any], side: str, key: str) -> list[float]:
    """Time of ``side`` divided by Mila's, in every round."""
    return [turn[side][key] / turn["mila"][key] for turn in result["turns"]]


def speed_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each thing measured."""
    title = CASES[result["case"]].title
    rows = []
    kinds = {
        "decode_ms": f"decode after {PROMPT_TOKENS} tokens",
        "late_decode_ms": f"decode after {PREFILL_TOKENS} tokens",
        "prefill_ms": f"prefill of {PREFILL_TOKENS} tokens",
    }
    for key, what in kinds.items():
        milliseconds = [median_of(result, side, key) for side in SIDES]
        compared = [ratios(result, side, key) for side in SIDES[1:]]
        shown = [f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in compared]
        speed = f"{1e3 / milliseconds[0]:.1f}" if "decode" in key else f"{1e3 * PREFILL_TOKENS / milliseconds[0]:,.0f}"
        rows.append((f"{title}, {what}", *(f"{value:.1f}" for value in milliseconds), speed, *shown))
    seconds = result["first_token_seconds"]
    ratio = seconds["transformers"] / seconds["mila"]
    milliseconds_of = [f"{1e3 * seconds[side]:.0f}" for side in ("mila", "transformers")]
    rows.append((f"{title}, command to first token", *milliseconds_of, "", "", f"{ratio:.2f}", ""))
    return rows


def memory_row(result: dict[str, Any]) -> tuple[str, ...]:
    """Peaks, and how much of the memory's speed decoding uses."""
    memory, plan = result["memory"], result["details"]["mila"]
    arenas = plan["arenas"]
    held = arenas.get("parameters", 0) + arenas.get("persistent", 0)
    speed = result["weight_bytes"] / (median_of(result, "mila", "decode_ms") / 1e3)
    copied = result["copy_bytes_per_second"]
    numbers = [*(memory[side]["peak_bytes"] for side in SIDES), plan["reserved_bytes"], held]
    return (
        CASES[result["case"]].title,
        *(f"{number / MEBIBYTE:,.0f}" for number in numbers),
        f"{(memory['mila']['peak_bytes'] - held) / 1e6:,.0f}",
        f"{speed / 1e9:.1f}",
        f"{copied / 1e9:.1f}",
        f"{100 * speed / copied:.0f} % / {200 * speed / copied:.0f} %",
    )


def report(results: list[dict[str, Any]]) -> str:
    """All tables, and what they were measured with."""
    versions = {
        name: version
        for details in results[0]["details"].values()
        for name, version in details.get("versions", {}).items()
    }
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    mila = results[0]["details"]["mila"]
    head = f"{processor()}; {said}; {THREADS} threads each; OpenBLAS {mila['openblas'].get('core', 'unknown')}"
    speed_header = ("ms", *SIDES, "Mila tokens/s", "ratio to transformers", "ratio to plain")
    speed = markdown_table(speed_header, [row for result in results for row in speed_rows(result)])
    memory_header = (
        "peak MiB",
        *(*SIDES, "Mila's plan", "weights + cache"),
        "Mila beyond these (MB)",
        *("weights GB/s", "copy GB/s (read + write)", "share of copy (read + write / read)"),
    )
    memory = markdown_table(memory_header, [memory_row(result) for result in results])
    agreement = [
        f"{result['case']}: tokens equal to {side}'s: {_agreeing(result, side):.1%}"
        for result in results
        for side in SIDES[1:]
    ]
    return "\n\n".join((head, speed, memory, "\n".join(agreement)))


def _agreeing(result: dict[str, Any], side: str) -> float:
    pairs: list[bool] = [
        a == b for turn in result["turns"] for a, b in zip(turn["mila"]["tokens"], turn[side]["tokens"], strict=True)
    ]
    return sum(pairs) / len(pairs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds of 32 tokens instead of 7 of 96")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one; may be repeated")
    arguments = parser.parse_args()
    rounds, tokens = (3, 32) if arguments.quick else (7, 96)
    results = [measure(CASES[name], rounds, tokens) for name in arguments.case or CASES]
    print(json.dumps(results, indent=2) if arguments.json else report(results))


if __name__ == "__main__":
    main()
