"""Learning rate schedules: their formulas, their limits, their JSON, and the same rates from PyTorch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mila.errors import ConfigurationError
from mila.training.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, Schedule, schedule_from_json

SCHEDULES: list[Schedule] = [
    ConstantSchedule(initial=0.25),
    ConstantSchedule(initial=3e-4, warmup_steps=7),
    LinearSchedule(initial=1e-3, total_steps=50),
    LinearSchedule(initial=1e-3, final=2e-4, total_steps=50, warmup_steps=10),
    CosineSchedule(initial=1e-3, final=1e-4, total_steps=50, warmup_steps=49),
    CosineSchedule(initial=6e-4, final=6e-5, total_steps=50, warmup_steps=10),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warmup_rises_from_one_share_to_the_initial_rate(schedule: Schedule) -> None:
    warmup = schedule.warmup_steps
    rates = [schedule.learning_rate(step) for step in range(warmup)]
    assert rates == pytest.approx([schedule.initial * (step + 1) / warmup for step in range(warmup)], rel=1e-15)
    assert schedule.learning_rate(max(0, warmup - 1)) == schedule.initial
    assert schedule.learning_rate(warmup) == schedule.initial


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (ConstantSchedule(initial=0.5), 10**12, 0.5),
        (LinearSchedule(initial=1.0, final=0.2, total_steps=100), 25, 0.8),
        (LinearSchedule(initial=1.0, final=0.2, total_steps=120, warmup_steps=20), 45, 0.8),
        (CosineSchedule(initial=1.0, final=0.2, total_steps=100), 50, 0.6),
        (CosineSchedule(initial=1.0, final=0.2, total_steps=120, warmup_steps=20), 70, 0.6),
        (CosineSchedule(initial=1.0, total_steps=300), 100, 0.75),
    ],
)
def test_rates_follow_the_formula(schedule: Schedule, step: int, expected: float) -> None:
    assert schedule.learning_rate(step) == pytest.approx(expected, rel=1e-15)


@given(
    initial=st.floats(1e-8, 10),
    final=st.floats(0, 10),
    total_steps=st.integers(1, 10_000),
    data=st.data(),
    kind=st.sampled_from([LinearSchedule, CosineSchedule]),
)
def test_a_decay_goes_one_way_and_ends_exactly_at_the_final_rate(
    initial: float,
    final: float,
    total_steps: int,
    data: st.DataObject,
    kind: type[LinearSchedule | CosineSchedule],
) -> None:
    warmup_steps = data.draw(st.integers(0, total_steps - 1))
    schedule = kind(initial=initial, final=final, total_steps=total_steps, warmup_steps=warmup_steps)
    step = data.draw(st.integers(warmup_steps, total_steps - 1))
    now, later = schedule.learning_rate(step), schedule.learning_rate(step + 1)
    direction = math.copysign(1.0, final - initial)
    assert direction * (later - now) >= -4e-16 * max(initial, final)
    assert schedule.learning_rate(total_steps) == schedule.learning_rate(total_steps + 10**9) == final


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_negative_step_is_refused(schedule: Schedule) -> None:
    with pytest.raises(ConfigurationError, match=r"Schedule: expected a step of 0 or more, got -1"):
        schedule.learning_rate(-1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_json_gives_the_same_schedule_back(schedule: Schedule) -> None:
    assert schedule_from_json(schedule.model_dump_json()) == schedule


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"kind": "constant", "initial": 0}', "initial"),
        ('{"kind": "constant"}', "initial"),
        ('{"kind": "constant", "initial": 1, "warmup_steps": -1}', "warmup_steps"),
        ('{"kind": "constant", "initial": "1"}', "initial"),
        ('{"kind": "constant", "initial": 1, "total_steps": 5}', "total_steps"),
        ('{"kind": "linear", "initial": 1}', "total_steps"),
        ('{"kind": "linear", "initial": 1, "total_steps": 0}', "total_steps"),
        ('{"kind": "linear", "initial": 1, "total_steps": 5, "final": -1}', "final"),
        ('{"kind": "linear", "initial": 1, "total_steps": true}', "total_steps"),
        ('{"kind": "cosine", "initial": 1, "total_steps": 5, "warmup_steps": 5}', "warmup_steps"),
        ('{"kind": "cosine", "initial": 1, "total_steps": 5.5}', "total_steps"),
        ('{"kind": "cosine", "initial": NaN, "total_steps": 5}', "initial"),
        ('{"kind": "cosine", "initial": Infinity, "total_steps": 5}', "initial"),
        ('{"kind": "step", "initial": 1}', "kind"),
        ('{"initial": 1}', "kind"),
    ],
)
def test_a_wrong_field_is_named(text: str, field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        schedule_from_json(text)


@pytest.mark.parametrize("name_of_a_field", ["initial", "warmup_steps", "kind"])
def test_a_schedule_cannot_be_changed(name_of_a_field: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(SCHEDULES[0], name_of_a_field, 1.0)


@pytest.mark.parity
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_are_those_of_pytorch(schedule: Schedule) -> None:
    """PyTorch updates the rate step by step and so rounds at each; 1e-12 holds 50 steps of it."""
    import torch
    from torch.optim import lr_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=schedule.initial)
    warmup = schedule.warmup_steps
    steps = 50 - warmup
    if isinstance(schedule, CosineSchedule):
        decay = lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=schedule.final)
    elif isinstance(schedule, LinearSchedule):
        end_factor = schedule.final / schedule.initial
        decay = lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=end_factor, total_iters=steps)
    else:
        decay = lr_scheduler.ConstantLR(optimizer, factor=1.0)
    scheduler = decay
    if warmup:
        rise = lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
        scheduler = lr_scheduler.SequentialLR(optimizer, [rise, decay], milestones=[warmup])
    rates = []
    for _ in range(51):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([schedule.learning_rate(step) for step in range(51)], rel=1e-12, abs=1e-15)
