"""Plans of presets against builds of them: whole where they are small, two and three layers where they are not."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.plan_accuracy import error_of
from benchmarks.plan_presets import off_the_line
from benchmarks.plan_presets_worker import with_layers
from mila.planning import Mode, PlanRequest, plan, read_target
from mila.planning.presets import preset_names

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
#: Memory is flat in what no layer changes, so that more layers add the same to each of these.
SIZES = ("reserved_bytes", "parameter_bytes", "state_bytes", "gradient_bytes")
REQUESTS = (
    PlanRequest(dtype="bfloat16"),
    PlanRequest(dtype="bfloat16", device="cuda:0", batch=2),
    PlanRequest(mode=Mode.TRAINING, context=64, batch=2),
)


class Build(NamedTuple):
    """A preset and what it is built for; ``layers`` is ``None`` for all of them."""

    preset: str
    mode: str
    dtype: str
    batch: int
    context: int
    layers: int | None = None


#: About a gigabyte each at most; ``python -m benchmarks.plan_presets`` builds all that fit a machine.
BUILDS = [
    Build("gpt2", "inference", "float32", 1, 1024),
    Build("smollm2-135m", "inference", "bfloat16", 2, 2048),
    Build("qwen2.5-0.5b", "inference", "bfloat16", 1, 1024),
    *(Build("smollm2-135m", "training", "float32", 1, 64, layers) for layers in (2, 3)),
    *(Build("qwen3-1.7b", "inference", "bfloat16", 1, 512, layers) for layers in (2, 3)),
]


def build_in_a_new_process(case: Build) -> dict[str, Any]:
    layers = read_target(case.preset).config.num_layers if case.layers is None else case.layers
    words = (case.preset, layers, case.mode, case.dtype, case.batch, case.context)
    command = [sys.executable, "-m", "benchmarks.plan_presets_worker", *map(str, words)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert completed.returncode == 0, completed.stderr
    built: dict[str, Any] = json.loads(completed.stdout)
    return built


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
@pytest.mark.parametrize("case", [pytest.param(case, id="-".join(map(str, case))) for case in BUILDS])
def test_a_build_of_a_preset_takes_what_was_planned(case: Build) -> None:
    built = build_in_a_new_process(case)
    assert built["held"] == built["planned"]
    reserved, grown = built["reserved_bytes"], built["grown_bytes"]
    assert abs(grown - reserved) <= max(reserved / 100, 4 * MIB), f"planned {reserved:,}, grew by {grown:,}"


@pytest.mark.parametrize(("name", "asked"), [*zip(preset_names(), cycle(REQUESTS), strict=False)], ids=preset_names())
def test_every_layer_adds_the_same(name: str, asked: PlanRequest) -> None:
    """All layers lie on the line through two and three, to the byte: these may be built in place of a large model."""
    target = read_target(name)
    depths = (2, 3, target.config.num_layers)
    plans = {layers: plan(with_layers(target, layers), asked, search=False) for layers in depths}
    for size in SIZES:
        assert off_the_line({layers: getattr(each, size) for layers, each in plans.items()}) == 0, size
    lines = [{layers: each.lines[i].bytes for layers, each in plans.items()} for i in range(len(plans[2].lines))]
    assert [off_the_line(sizes) for sizes in lines] == [0] * len(lines)


def test_a_layer_that_differs_is_noticed() -> None:
    assert off_the_line({2: 20, 3: 30, 5: 50}) == 0
    assert off_the_line({2: 20, 3: 30, 5: 51}) == 1
    assert off_the_line({2: 20, 3: 30, 4: 30}) == -10


def test_an_error_is_negative_where_more_was_used() -> None:
    assert error_of(50, 100) == -50.0
    assert error_of(150, 100) == 50.0
