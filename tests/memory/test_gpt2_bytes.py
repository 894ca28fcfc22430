"""Every byte of GPT-2 124M, against a page worked out by hand: ``gpt2_124m_bytes.md`` beside this file."""

from __future__ import annotations

import ast
import functools
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, Component, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from mila.memory import MemoryPlan
from mila.models import GptConfig, GptTransformer
from mila.training.adamw import AdamW

PAGE = (Path(__file__).parent / "gpt2_124m_bytes.md").read_text(encoding="utf-8")
GPT2 = GptConfig(vocab_size=50257, embedding_dim=768, num_layers=12, num_heads=12, max_seq_len=1024)
PLANS = ("I", "T", "S")
ALIGNMENT = 64
#: What stands beside a parameter in each arena of the same layout, and in which plans.
BESIDE_PARAMETERS = {"gradient": "TS", "first_moment": "S", "second_moment": "S"}


@functools.cache
def planned(which: str) -> MemoryPlan:
    """Plan one of the three builds: inference, training, training step."""
    component: Component[GptConfig] | TrainingStep = GptTransformer("gpt", GPT2)
    if which == "S":
        component = TrainingStep(component, SoftmaxCrossEntropy("loss"), AdamW())
    component.set_execution_context(ExecutionContext("cpu", threads=2))
    return component.plan(BuildContext((1, 256), RuntimeMode.INFERENCE if which == "I" else RuntimeMode.TRAINING))


def tables() -> dict[str, list[list[str]]]:
    """Return the rows of the page's tables by the heading above them."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in PAGE.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith("| ---"):
            found.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {name: rows[1:] for name, rows in found.items()}


TABLES = tables()
BUFFERS = [row for rows in TABLES.values() for row in rows if len(row) == 7 and row[1] and set(row[1]) <= set("ITS ")]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def computed(arithmetic: str) -> int:
    """Do the sums of a cell again: whole numbers, ``+``, ``*`` and brackets."""
    tree = ast.parse(arithmetic, mode="eval")
    allowed = (ast.Expression, ast.BinOp, ast.Add, ast.Mult, ast.Constant)
    assert all(isinstance(node, allowed) for node in ast.walk(tree)), arithmetic
    result: int = eval(compile(tree, "page", "eval"), {"__builtins__": {}})
    return result


def general(path: str) -> str:
    return re.sub(r"block_\d+", "block_*", path)


def described(which: str) -> Counter[tuple[str, str, int]]:
    """Return what the page says that a plan holds: name, dtype and bytes, with the number of copies."""
    found: Counter[tuple[str, str, int]] = Counter()
    for name, plans, dtype, _, size, copies, _ in BUFFERS:
        if which in plans.split():
            found[name, dtype, number(size)] += int(copies)
    for name, _, dtype, _, size, copies, _ in TABLES["Parameters"]:
        for suffix, plans in BESIDE_PARAMETERS.items():
            if which in plans:
                found[f"{name}.{suffix}", dtype, number(size)] += int(copies)
    return found


@pytest.mark.parametrize("row", BUFFERS, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_arithmetic_of_the_page_is_right(row: list[str]) -> None:
    _, _, dtype, arithmetic, size, copies, total = row
    assert dtype in ("float32", "int32")
    assert number(size) == 4 * computed(arithmetic)
    assert number(total) == number(size) * int(copies)


@pytest.mark.parametrize("which", PLANS)
def test_the_plan_holds_what_the_page_says_and_nothing_else(which: str) -> None:
    buffers = [buffer for buffer in planned(which).buffers if buffer.nbytes]  # some kernels need no workspace here
    held = Counter((f"{general(b.path)} {b.name}", b.dtype.name, b.nbytes) for b in buffers)
    expected = described(which)
    assert held - expected == Counter(), "in the plan, and not on the page"
    assert expected - held == Counter(), "on the page, and not in the plan"


@pytest.mark.parametrize("which", PLANS)
def test_the_fullest_step_is_the_pages(which: str) -> None:
    (heading,) = [name for name in TABLES if name.startswith(f"{which}: ")]
    plan = planned(which)
    step, alive = plan.fullest_step()
    assert heading == f"{which}: {step}"
    *rows, all_of_them = TABLES[heading]
    held = Counter((f"{general(b.path)} {b.name}", b.nbytes) for b in alive)
    assert held == Counter({(name, number(size)): int(copies) for name, size, copies, _ in rows})
    for _, size, copies, rounded in rows:
        assert number(rounded) == math.ceil(number(size) / ALIGNMENT) * ALIGNMENT * int(copies)
    total = sum(number(row[3]) for row in rows)
    assert number(all_of_them[3]) == total == plan.transient_lower_bound == plan.transient_bytes


@pytest.mark.parametrize("row", TABLES["Reserved"], ids=lambda row: row[0])
def test_the_arenas_and_what_is_reserved_are_the_pages(row: list[str]) -> None:
    plan = planned(row[0])
    parameters, gradients, moments, persistent, transient, bases, reserved = map(number, row[1:])
    arenas = dict(plan.arena_bytes)
    assert arenas["parameters"] == parameters
    assert arenas.get("gradients", 0) == gradients
    assert arenas.get("first_moment", 0) + arenas.get("second_moment", 0) == moments
    assert arenas["persistent"] == persistent
    assert arenas["transient"] == transient
    assert ALIGNMENT * sum(1 for size in arenas.values() if size) == bases
    assert plan.reserved_bytes == reserved == sum([parameters, gradients, moments, persistent, transient, bases])


def test_the_model_has_as_many_parameters_as_the_page_says() -> None:
    assert "124,439,808 parameters" in PAGE
    assert GptTransformer("gpt", GPT2).parameter_count() == 124_439_808
    total = sum(computed(row[3]) * int(row[5]) for row in TABLES["Parameters"])
    assert total == 124_439_808
