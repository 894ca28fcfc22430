"""Plans of the presets: layers lie on a straight line, and what fits this machine is built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mila.devices import ExecutionContext
from mila.memory import MemoryStats
from mila.planning import Mode, PlanReport, PlanRequest, Target, plan, read_target
from mila.planning.building import build_context, construct
from mila.planning.presets import preset_names

REQUESTS = [
    PlanRequest(),
    PlanRequest(mode=Mode.TRAINING, context=1024),
    PlanRequest(dtype="bfloat16", device="cuda:0", batch=2),
]


def with_layers(target: Target, layers: int) -> Target:
    return replace(target, config=target.config.model_copy(update={"num_layers": layers}))


def lines(report: PlanReport) -> dict[str, int]:
    return {"reserved": report.reserved_bytes, **{line.key: line.bytes for line in report.lines}}


@pytest.mark.parametrize("name", sorted(preset_names())[::3])
def test_every_layer_takes_as_much_as_the_third(name: str) -> None:
    target = read_target(name)
    layers = target.config.num_layers
    for request in REQUESTS:
        two, three, all_of_them = (
            lines(plan(with_layers(target, count), request, search=False)) for count in (2, 3, layers)
        )
        expected = {key: two[key] + (layers - 2) * (three[key] - two[key]) for key in two}
        assert all_of_them == expected, request


@pytest.mark.parametrize(
    ("name", "layers"),
    [("gpt2", None), ("smollm2-135m", 2), ("qwen2.5-0.5b", 2), ("qwen3-0.6b", 3), ("llama-3.2-1b", 2)],
)
def test_what_was_planned_is_built_at_full_width(name: str, layers: int | None) -> None:
    target = read_target(name)
    planned = target if layers is None else with_layers(target, layers)
    report = plan(planned, PlanRequest(dtype="bfloat16", context=512, batch=2), search=False)
    root = construct(planned, report.choices, ExecutionContext("cpu"))
    root.build(build_context(report.choices))
    stats = MemoryStats(report.parameter_bytes, report.state_bytes, report.gradient_bytes)
    assert root.get_memory_stats() == stats
