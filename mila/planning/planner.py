"""The plan of a target: the real graph, unbuilt, is asked what it takes."""

from __future__ import annotations

import os
from typing import Any

from mila.core import Component
from mila.devices import DeviceId
from mila.errors import ConfigurationError
from mila.planning.asking import Listener, Questions
from mila.planning.assumptions import assumptions_of
from mila.planning.breakdown import fullest_step_of, lines_of, tree_of
from mila.planning.budget import Budget
from mila.planning.building import choices_of
from mila.planning.elsewhere import elsewhere_of
from mila.planning.fitting import limits_of, remedies_of
from mila.planning.report import Outcome, PlanReport, TargetSummary
from mila.planning.request import PlanRequest
from mila.planning.target import Target
from mila.planning.targets import read_target


def plan(
    target: Target | str | os.PathLike[str],
    request: PlanRequest | None = None,
    *,
    search: bool = True,
    on_question: Listener | None = None,
) -> PlanReport:
    """What a build of ``target`` would take, exactly; nothing is allocated, and no weights are read.

    Args:
        target: read already, or named as :func:`mila.planning.read_target` takes it.
        request: how it is to be built; inference at the model's full context by default.
        search: also look for the largest context and batch that fit, and for what would make it fit.
        on_question: is called with the choices before each plan.

    Raises:
        ConfigurationError, DTypeError, DeviceError, ShapeError: options that a build would refuse.
        CheckpointError: the target is malformed.
    """
    asked = PlanRequest() if request is None else request
    named = target_named(target)
    choices = choices_of(named, asked)
    device = DeviceId.parse(choices.device)
    questions = Questions(named, on_question)
    root, memory = questions.plan(choices)
    stats, reserved = memory.stats, memory.reserved_bytes
    budget = Budget.of(device, choices.mode, asked.budget)
    verdict = budget.verdict(reserved)
    is_tight = search and verdict.outcome is Outcome.DOES_NOT_FIT
    limits = []
    if search and budget.size is not None:
        limits = limits_of(questions, choices, budget, chose_prefill=asked.prefill is None)
    return PlanReport(
        target=summary_of(named, root),
        choices=choices,
        reserved_bytes=reserved,
        lines=lines_of(memory),
        parameter_bytes=stats.device_parameter_bytes,
        state_bytes=stats.device_state_bytes,
        gradient_bytes=stats.device_gradient_bytes,
        fullest_step=fullest_step_of(memory),
        elsewhere=elsewhere_of(device, choices.mode),
        assumptions=assumptions_of(named, asked, choices, memory),
        verdict=verdict,
        limits=limits,
        remedies=remedies_of(questions, choices, budget) if is_tight else [],
        tree=tree_of(root, memory),
    )


def target_named(target: Target | str | os.PathLike[str]) -> Target:
    """A target as it is, or read by its name.

    Raises:
        ConfigurationError: neither.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str | os.PathLike):
        raise ConfigurationError(f"target: expected a Target or a name, got {type(target).__name__}")
    return read_target(os.fspath(target))


def summary_of(target: Target, root: Component[Any]) -> TargetSummary:
    """The target, with what its network says of itself."""
    stored = target.stored
    return TargetSummary(
        target=target.target,
        kind=target.kind,
        name=target.name,
        model_type=target.model_type,
        parameters=root.parameter_count(),
        layers=target.config.num_layers,
        max_context=target.config.max_seq_len,
        stored_bytes=None if stored is None else stored.nbytes,
        stored_dtypes={} if stored is None else dict(stored.dtypes),
        notes=list(target.notes),
        tie_word_embeddings=target.tie_word_embeddings,
        ignore_fields=list(target.ignore_fields),
    )
