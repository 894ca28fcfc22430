"""The training loop: what it computes, what it reports, when it stops, and what it leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila import BuildContext, RuntimeMode
from mila.errors import CheckpointError, DataError, LifecycleError, NonFiniteError
from mila.serialization.export_folder import EXPORT_MARK
from mila.training import (
    CheckpointReport,
    RunFolder,
    StepReport,
    Trainer,
    TrainingEvent,
    TrainingOutcome,
    ValidationReport,
    load_model,
    load_tokenizer,
    read_training_state,
    trainer,
    validation_batches,
)
from tests.training.tiny_run import (
    STEPS,
    TOKENIZER,
    make_config,
    make_network,
    make_split,
    make_trainer,
    numbers_of,
    run_until,
)


def steps_of(events: list[TrainingEvent]) -> list[StepReport]:
    return [event for event in events if isinstance(event, StepReport)]


def validations_of(events: list[TrainingEvent]) -> list[ValidationReport]:
    return [event for event in events if isinstance(event, ValidationReport)]


def checkpoints_of(events: list[TrainingEvent]) -> list[CheckpointReport]:
    return [event for event in events if isinstance(event, CheckpointReport)]


def run(built: Trainer, until: int | None = None) -> list[TrainingEvent]:
    events: list[TrainingEvent] = []
    built.run(events.append, until=until)
    return events


# ---------------------------------------------------------------------- what it computes


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_accumulated_parts_train_like_the_whole_batch(tmp_path: Path, kind: str, parts: int) -> None:
    def trained(batch_size: int, accumulation_steps: int) -> tuple[list[tuple[int, float, float]], list[Any]]:
        network = make_network(kind, dropout=0.0, dtype="float64", seed=1)
        sizes: dict[str, Any] = {"batch_size": batch_size, "accumulation_steps": accumulation_steps}
        built = make_trainer(tmp_path / str(accumulation_steps), network=network, **sizes)
        return numbers_of(run(built, until=4)), [array.copy() for array in built.step.get_parameters()]

    whole, whole_parameters = trained(6, 1)
    accumulated, parameters = trained(6 // parts, parts)
    np.testing.assert_allclose(accumulated, whole, rtol=1e-11)
    for array, expected in zip(parameters, whole_parameters, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-7, atol=1e-9)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    losses = [report.loss for report in steps_of(run(make_trainer(tmp_path, accumulation_steps=1)))]
    assert losses[-1] < losses[0] - 0.3


def test_every_step_takes_the_learning_rate_of_the_schedule(tmp_path: Path) -> None:
    built = make_trainer(tmp_path)
    rates = [report.learning_rate for report in steps_of(run(built))]
    assert rates == [built.config.schedule.learning_rate(step) for step in range(STEPS)]


def test_clipping_changes_what_is_learned_and_not_what_is_reported(tmp_path: Path) -> None:
    free = make_trainer(tmp_path / "free", optimizer=make_config().optimizer.model_copy(update={"maximum_norm": None}))
    clipped = make_trainer(tmp_path / "clipped")
    first, second = numbers_of(run(free, until=2)), numbers_of(run(clipped, until=2))
    assert first[0] == second[0]
    assert first[0][2] > 0.5, "the norm is that before clipping"


@pytest.mark.parametrize("validation_batches_asked", [1, 2, None])
def test_validation_is_the_mean_over_its_windows(tmp_path: Path, validation_batches_asked: int | None) -> None:
    built = make_trainer(tmp_path, validate_every=3, validation_batches=validation_batches_asked)
    events = run(built, until=3)
    network = load_model(tmp_path)
    losses = []
    for inputs, targets in validation_batches(built.split.validation, 3, 8, validation_batches_asked):
        for row, expected in zip(inputs, targets, strict=True):
            for length in range(1, 9):
                logits = network.forward(row[None, :length].copy())[0, 0].astype(np.float64)
                losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[expected[length - 1]])
    assert validations_of(events)[0].loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_validation_leaves_training_as_it_was(tmp_path: Path) -> None:
    without = numbers_of(run(make_trainer(tmp_path / "without")))
    assert numbers_of(run(make_trainer(tmp_path / "with", validate_every=1, validation_batches=1))) == without


def test_the_best_validation_is_the_lowest_so_far(tmp_path: Path) -> None:
    events = run(make_trainer(tmp_path, validate_every=2, validation_batches=2))
    losses = [report.loss for report in validations_of(events)]
    assert [report.step for report in validations_of(events)] == [2, 4, 6, 8, 10, 12]
    assert [report.best_loss for report in validations_of(events)] == [min(losses[: i + 1]) for i in range(6)]
    assert [report.is_best for report in validations_of(events)] == [
        loss < min(losses[:i], default=np.inf) for i, loss in enumerate(losses)
    ]


# ---------------------------------------------------------------------- memory


def test_a_trainer_builds_what_it_planned(tmp_path: Path) -> None:
    built = Trainer(make_network(), make_split(), make_config(), tmp_path)
    plan = built.plan()
    assert built.step.get_memory_stats().total_bytes == 0
    report = built.build(trace_allocations=True)
    assert report.predicted_bytes == plan.reserved_bytes == report.allocated_bytes
    assert report.stats == plan.stats


def test_a_batch_is_read_where_the_plan_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of training and of validation, whose last batch is short."""
    built = Trainer(make_network(), make_split(), make_config(validate_every=1), tmp_path)
    planned = [each for each in built.plan().buffers if each.name in ("ids", "targets")]
    assert [(each.path, each.shape, each.dtype.name) for each in planned] == [("training_step", (3, 8), "int32")] * 2
    built.build()
    places, forward = [built.step.view(each.name, each.shape) for each in planned], built.step.forward
    seen: list[tuple[Any, ...]] = []

    def watched(*batch: Any) -> Any:
        seen.append((len(batch[0]), *(ids.ctypes.data for ids in batch)))
        return forward(*batch)

    monkeypatch.setattr(built.step, "forward", watched)
    run(built, until=1)
    assert {each[1:] for each in seen} == {tuple(place.ctypes.data for place in places)}
    assert {each[0] for each in seen} == {3, len(make_split().validation[1:]) // 8 % 3}


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(make_trainer(tmp_path, validate_every=2, checkpoint_every=3))
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------- stopping


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    built = make_trainer(tmp_path, checkpoint_every=2)

    def spoil(event: TrainingEvent) -> None:
        if isinstance(event, StepReport) and event.step == 3:
            built.step.get_parameters()[0][:] = np.nan

    with pytest.raises(NonFiniteError, match=r"^step 4: the loss is nan; the last checkpoint is .*step-00000002$"):
        built.run(spoil)
    assert read_training_state(tmp_path / "step-00000002").update_count == 2
    with pytest.raises(LifecycleError, match="cut short"):
        built.run()
    built.resume()
    assert built.run().step == STEPS


def test_a_gradient_that_is_not_finite_names_the_step_and_the_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = make_trainer(tmp_path)
    backward = built.step.backward

    def spoil(*arguments: Any, loss_scale: float = 1.0) -> Any:
        result = backward(*arguments, loss_scale=loss_scale)
        gradient = built.step.get_gradients()[1]
        assert gradient is not None
        gradient[0, 0] = np.inf
        return result

    monkeypatch.setattr(built.step, "backward", spoil)
    with pytest.raises(NonFiniteError, match=r"^step 1: gpt\.positions: .* is inf at .*; there is no checkpoint$"):
        built.run()


def interrupt(step: int, times: int = 1) -> Any:
    """Return a listener that presses Ctrl-C after a step."""

    def listen(event: TrainingEvent) -> None:
        if isinstance(event, StepReport) and event.step == step:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    return listen


def test_an_interrupt_ends_the_step_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    built = make_trainer(tmp_path)
    outcome = built.run(interrupt(3))
    assert outcome == TrainingOutcome(3, True, tmp_path / "step-00000003", None)
    assert signal.getsignal(signal.SIGINT) is before
    assert built.run() == TrainingOutcome(STEPS, False, tmp_path / f"step-{STEPS:08d}", None)


def test_a_second_interrupt_is_immediate(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path).run(interrupt(3, times=2))
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_another_thread_stops_on_request(tmp_path: Path) -> None:
    built = make_trainer(tmp_path)
    outcomes: list[TrainingOutcome] = []

    def stop_after_two(event: TrainingEvent) -> None:
        if isinstance(event, StepReport) and event.step == 2:
            built.request_stop()

    thread = threading.Thread(target=lambda: outcomes.append(built.run(stop_after_two)))
    thread.start()
    thread.join()
    assert [(outcome.step, outcome.interrupted) for outcome in outcomes] == [(2, True)]


@pytest.mark.parametrize(("changes", "tokens"), [({}, 30), ({"batch_size": 100}, 1000), ({"validate_every": 1}, 40)])
def test_too_few_tokens_are_refused_at_once(tmp_path: Path, changes: dict[str, Any], tokens: int) -> None:
    text = "the " * tokens
    with pytest.raises(DataError, match="expected at least"):
        make_trainer(tmp_path, split=make_split(text[:tokens]), **changes)


def test_an_unbuilt_trainer_does_not_run(tmp_path: Path) -> None:
    unbuilt = Trainer(make_network(), make_split(), make_config(), tmp_path)
    for call in (unbuilt.run, unbuilt.resume, unbuilt.validate):
        with pytest.raises(LifecycleError, match="build"):
            call()


# ---------------------------------------------------------------------- the run folder


def steps_kept(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def test_the_last_and_the_best_checkpoints_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(Trainer, "validate", lambda self: next(losses))
    events = run(make_trainer(tmp_path, validate_every=2, checkpoint_every=1, keep_last=3))
    assert steps_kept(tmp_path) == [4, 10, 11, 12]
    assert [report.step for report in checkpoints_of(events)] == list(range(1, STEPS + 1))
    removed = {path.name for report in checkpoints_of(events) for path in report.removed}
    assert removed == {f"step-{step:08d}" for step in range(1, 10) if step != 4}


def test_a_new_best_is_saved_whenever_it_comes(tmp_path: Path) -> None:
    events = run(make_trainer(tmp_path, validate_every=2, validation_batches=1), until=6)
    assert {report.step for report in checkpoints_of(events)} == {
        report.step for report in validations_of(events) if report.is_best
    } | {6}


def test_nothing_is_removed_before_the_new_checkpoint_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = make_trainer(tmp_path, checkpoint_every=1, keep_last=1)
    built.run(until=2)

    def fail(*arguments: object) -> None:
        raise CheckpointError("disk: could not be written: No space left on device")

    monkeypatch.setattr(trainer, "save_checkpoint", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        built.run(until=3)
    assert steps_kept(tmp_path) == [2]


def test_pruning_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-best").mkdir()
    (tmp_path / "step-00000001").mkdir()  # without a manifest it is nobody's checkpoint
    (tmp_path / ".removed-step-00000000").mkdir()  # a removal that was cut
    run(make_trainer(tmp_path, checkpoint_every=2, keep_last=1), until=4)
    kept = ["notes", "step-00000001", "step-00000004", "step-best"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def test_a_folder_with_checkpoints_is_not_trained_over(tmp_path: Path) -> None:
    run_until(tmp_path, 2)
    with pytest.raises(CheckpointError, match="has checkpoints; resume"):
        make_trainer(tmp_path).run()
    assert steps_kept(tmp_path) == [2]


def test_the_folder_of_a_model_is_not_trained_into(tmp_path: Path) -> None:
    network = make_network()
    network.build(BuildContext((1, 4), RuntimeMode.INFERENCE, initialize_parameters=True))
    network.save_pretrained(tmp_path / "export")
    shutil.copytree(tmp_path / "export", tmp_path / "download", ignore=shutil.ignore_patterns(EXPORT_MARK))
    for name in ("export", "download"):
        before = sorted((tmp_path / name).iterdir())
        with pytest.raises(
            CheckpointError, match=f"{name}: expected a folder for a run, got that of a model; use another"
        ):
            make_trainer(tmp_path / name).require_free_folder()
        assert sorted((tmp_path / name).iterdir()) == before


def test_only_the_newest_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    run_until(tmp_path / "run", 4, checkpoint_every=2)
    with pytest.raises(CheckpointError, match="is newer"):
        make_trainer(tmp_path / "run").resume(tmp_path / "run" / "step-00000002")
    branch = make_trainer(tmp_path / "branch")
    branch.resume(tmp_path / "run" / "step-00000002")
    assert branch.run(until=3).last_checkpoint == tmp_path / "branch" / "step-00000003"


def test_checkpoints_hold_the_tokenizer(tmp_path: Path) -> None:
    run_until(tmp_path, 1)
    assert load_tokenizer(tmp_path) == TOKENIZER


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(CheckpointError, match="another run is writing"):
        make_trainer(tmp_path).run(until=1)
    run_until(tmp_path, 1)


def test_a_request_to_end_leaves_a_checkpoint(tmp_path: Path) -> None:
    def listen(event: TrainingEvent) -> None:
        if isinstance(event, StepReport):
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = make_trainer(tmp_path).run(listen)
    assert outcome.interrupted
    assert outcome.last_checkpoint == tmp_path / "step-00000001"


def test_ids_without_a_row_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    split = make_split()
    network = make_network(seed=5)
    split.validation[-1] = network.config.vocab_size
    with pytest.raises(DataError, match="validation tokens: expected ids from 0 to"):
        make_trainer(tmp_path, network=network, split=split)
