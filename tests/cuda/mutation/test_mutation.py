"""At least 95 of 100 mutants of the CUDA kernels fail a test, and the others are listed with the reason."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.cuda.mutation.mutants import files, mutants_of, sample
from tests.cuda.mutation.operators import OPERATORS, code_of
from tests.cuda.mutation.survivors import listed
from tests.cuda.mutation.texts import target_of
from tests.cuda.mutation.trials import COUNT, SEED, read

ROOT = Path(__file__).resolve().parents[3]
LEAST_KILLED = 95

#: A line of code, and what becomes of it by each operator that has something to say about it.
CHANGES = {
    "    __syncthreads();  // a < b": {"barrier": ["    ;  // a < b"]},
    "  for (int i = x; i < count; i += step) sum += a;": {
        "comparison": ["  for (int i = x; i <= count; i += step) sum += a;"],
        "bound": ["  for (int i = x; i < count - 1; i += step) sum += a;"],
        "stride": ["  for (int i = x; i < count; i += 2 * (step)) sum += a;"],
        "arithmetic": [
            "  for (int i = x; i < count; i -= step) sum += a;",
            "  for (int i = x; i < count; i += step) sum -= a;",
        ],
        "statement": ["  for (int i = x; i < count; i += step) ;"],
    },
    "  if (row >= rows) return;": {
        "comparison": ["  if (row > rows) return;"],
        "condition": ["  if  (!(row >= rows)) return;"],
        "statement": ["  if (row >= rows) ;"],
    },
    "  const index_t at = static_cast<index_t>(m) * n;": {
        "cast": ["  const index_t at = (m) * n;"],
        "arithmetic": ["  const index_t at = static_cast<index_t>(m) / n;"],
    },
    "  sum += static_cast<double>(x[k]) * x[k];": {
        "cast": ["  sum += (x[k]) * x[k];"],
        "arithmetic": ["  sum -= static_cast<double>(x[k]) * x[k];", "  sum += static_cast<double>(x[k]) / x[k];"],
        "statement": ["  ;"],
    },
    "  x = a && min(-b, 1.0f) == 0.0f;": {
        "logic": ["  x = a || min(-b, 1.0f) == 0.0f;"],
        "choice": ["  x = a && max(-b, 1.0f) == 0.0f;"],
        "sign": ["  x = a && min(b, 1.0f) == 0.0f;"],
        "comparison": ["  x = a && min(-b, 1.0f) != 0.0f;"],
        "constant": ["  x = a && min(-b, 0.0f) == 0.0f;", "  x = a && min(-b, 1.0f) == (0.0f + 1);"],
        "statement": ["  ;"],
    },
    "  atomicAdd(&sums[i], x);": {"atomic": ["  (*(&sums[i]) += x);"], "statement": ["  ;"]},
    "  store(&kept, __float2half_rn(warp_sum(value)));": {
        "cast": ["  store(&kept, __float2half_rz(warp_sum(value)));"],
        "exchange": ["  store(&kept, __float2half_rn((value)));"],
        "statement": ["  ;"],
    },
    "  x = __shfl_xor_sync(ALL_LANES, value, offset);": {
        "exchange": ["  x = (value);"],
        "statement": ["  ;"],
    },
    "  float largest = Maximum::neutral();": {"initial value": ["  float largest = 0.0f;"]},
    "  position += static_cast<index_t>(gridDim.x) * n)": {
        "arithmetic": [
            "  position -= static_cast<index_t>(gridDim.x) * n)",
            "  position += static_cast<index_t>(gridDim.x) / n)",
        ]
    },
    "constexpr int THREADS = 256;": {},
    "#pragma unroll 2": {},
    "template <int WIDTH, typename Id>": {},
    "  for (int half = x; half > 0; half /= 2) {": {},
}


@pytest.mark.parametrize("line", CHANGES)
def test_operators_change_what_they_say(line: str) -> None:
    code = code_of(line)
    changed = {name: [edit.applied(line) for edit in operator(code)] for name, operator in OPERATORS.items()}
    assert {name: lines for name, lines in changed.items() if lines} == CHANGES[line]


def test_a_sample_is_repeatable_and_spread_over_files_and_operators() -> None:
    chosen = list(islice(sample(SEED), COUNT))
    assert chosen == list(islice(sample(SEED), COUNT))
    assert chosen != list(islice(sample(SEED + 1), COUNT))
    of_files = Counter(mutant.key.file for mutant in chosen)
    assert set(of_files) >= {path.name for path in files() if len(mutants_of(path)) >= COUNT}
    assert max(of_files.values()) <= COUNT / 8
    assert len({mutant.operator for mutant in chosen}) >= len(OPERATORS) - 2
    assert len({mutant.key for mutant in chosen}) == len({mutant.text for mutant in chosen}) == COUNT


def test_a_mutant_is_known_by_its_line_wherever_that_stands() -> None:
    for path in files():
        keys = [mutant.key for mutant in mutants_of(path)]
        assert len(keys) == len(set(keys))
        assert not any(re.search(r"\d+$", key.file) or "//" in key.line for key in keys)


def test_a_change_is_felt_by_the_kernels_that_use_it() -> None:
    for mutant in mutants_of(next(path for path in files() if path.name == "optimizer.cu")):
        target = target_of(mutant.key.file, mutant.text, 0)
        assert target.source == "optimizer"
        assert target.changed != target.original
        if "first" in mutant.key.line and "moment" not in mutant.key.line and "beta1" not in mutant.key.line:
            assert target.kernels == {"first_non_finite"} or target.kernels == {"adamw"}, mutant


def test_listed_survivors_are_mutants() -> None:
    keys = {mutant.key for path in files() for mutant in mutants_of(path)}
    gone = [str(key) for key in listed() if key not in keys]
    assert not gone, "no mutants any more: take their lines out of survivors.tsv:\n" + "\n".join(gone)


def test_mutants_are_killed_and_the_others_listed(tmp_path: Path, emulated: object) -> None:
    report = tmp_path / "report.json"
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); from tests.cuda.mutation.__main__ import main; "
        f"main(['--report', {str(report)!r}])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    trials = read(report)
    survivors = [trial for trial in trials if trial.verdict.outcome == "survived"]
    new = [f"{trial.mutant}\n{trial.key}\tREASON" for trial in survivors if trial.key not in listed()]
    assert not new, "no test kills these: add one, or a line with the reason to survivors.tsv:\n" + "\n".join(new)
    assert len(trials) == COUNT
    assert len(trials) - len(survivors) >= LEAST_KILLED
