"""Text encoders of CLIP as targets: plans are those of what is built, and what they do not have is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from mila import BuildContext, ExecutionContext, RuntimeMode
from mila.errors import CheckpointError, ConfigurationError, ShapeError
from mila.models import read_clip_text_folder
from mila.planning import Mode, OptimizerKind, PlanReport, PlanRequest, plan, read_target
from mila.planning.sweep import sweep
from tests.cli.commands import mila_here
from tests.cli.plan_documents import document
from tests.models.clip_cases import CLIP_GOLDEN, T
from tests.planning.reading import refused
from tests.planning.stored_files import change_config, write

FOLDERS = sorted(path for path in CLIP_GOLDEN.iterdir() if path.is_dir())
SIZES = ("hidden_size", "max_position_embeddings", "projection_dim")
TRAINING = {"mode": Mode.TRAINING, "optimizer": OptimizerKind.NONE}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_plan_is_what_a_build_takes(folder: Path, dtype: str) -> None:
    for context, batch, mode in ((None, 3, {}), (5, 1, {}), (7, 2, TRAINING)):
        report = plan(
            str(folder), PlanRequest.model_validate({"context": context, "batch": batch, "dtype": dtype, **mode})
        )
        network = read_clip_text_folder(folder).network(length=context, device="cpu", dtype=dtype)
        runtime_mode = RuntimeMode.TRAINING if mode else RuntimeMode.INFERENCE
        network.build(BuildContext((batch, context or T), runtime_mode, initialize_parameters=True))
        stats = network.get_memory_stats()
        assert (report.parameter_bytes, report.state_bytes, report.gradient_bytes) == (
            stats.device_parameter_bytes,
            stats.device_state_bytes,
            stats.device_gradient_bytes,
        )
        assert sum(line.bytes for line in report.lines) == report.reserved_bytes
        assert report.reserved_bytes == network.plan(BuildContext((batch, context or T), runtime_mode)).reserved_bytes
        assert (report.choices.prefill, report.choices.context) == (None, context or T)
        assert report.target.parameters == network.parameter_count()
        assert (report.tree[0].path, report.tree[0].component) == ("model", "ClipTextEncoder")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_files_say_is_told(folder: Path) -> None:
    target = read_target(str(folder))
    stored = load_file(folder / "model.safetensors").values()
    assert target.stored is not None
    assert target.stored.nbytes == sum(tensor.nbytes for tensor in stored)
    assert target.is_text_encoder
    alone = read_target(str(folder / "config.json"))
    assert (alone.config, alone.stored) == (target.config, None)
    assert any("image encoder" in note for note in target.notes) is folder.name.startswith("whole")


def test_on_a_device_that_is_not_here_other_lengths_are_planned_too() -> None:
    for context in (None, 4):
        report = plan(str(FOLDERS[0]), PlanRequest(context=context, device="cuda:0"), search=False)
        network = read_clip_text_folder(FOLDERS[0]).network(
            length=context, device=ExecutionContext.to_plan_with("cuda:0")
        )
        shape = BuildContext((1, context or T), RuntimeMode.INFERENCE)
        assert report.reserved_bytes == network.plan(shape).reserved_bytes


def test_limits_and_remedies_are_those_of_other_lengths(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CLIP_GOLDEN / "projected", tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    change_config(folder, max_position_embeddings=400)
    whole = plan(str(folder), PlanRequest(batch=8, budget=0), search=False)
    fixed = whole.verdict.needed_bytes - whole.reserved_bytes
    report = plan(str(folder), PlanRequest(batch=8, budget=fixed + whole.reserved_bytes // 2))
    limits = {limit.option: limit.value for limit in report.limits}
    assert limits["context"] is not None
    for context, fits in ((limits["context"], True), (limits["context"] + 1, False)):
        asked = PlanRequest(batch=8, context=context, budget=report.verdict.budget_bytes)
        assert (plan(str(folder), asked, search=False).verdict.outcome.value == "fits") is fits
    assert [remedy.options for remedy in report.remedies][:1] == [f"--context {limits['context']}"]
    table = sweep(str(folder), PlanRequest(), {"context": [8, 16]})
    assert [point.problem for point in table.points] == [None, None]


def test_what_a_text_encoder_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = str(FOLDERS[0])
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"prefill": 4},
            ConfigurationError,
            "prefill: is for language models; a text encoder takes whole texts, got 4",
        ),
        ({"mode": Mode.TRAINING}, ConfigurationError, "optimizer: expected none, as a text encoder has no loss"),
        ({"context": T + 1}, ShapeError, f"context: expected at most {T} positions"),
    ]
    for fields, kind, message in wrong:
        with pytest.raises(kind, match=message):
            plan(folder, PlanRequest.model_validate(fields))
    for tied in (True, False):
        refused(folder, ConfigurationError, "a text encoder has no head", tie_word_embeddings=tied)
    copy = Path(shutil.copytree(CLIP_GOLDEN / "projected", tmp_path / "model"))
    change_config(copy, own_field=1)
    refused(copy, CheckpointError, "own_field = 1 is not known and may change the result")
    assert read_target(str(copy), ignore_fields=["own_field"]).ignore_fields == ("own_field",)
    absent = read_target(str(copy), ignore_fields=["own_field", "other_field"])
    assert absent.notes[-1] == "the config has no field 'other_field' to ignore"
    change_config(copy, own_field=..., attention_dropout=0.1)
    assert "planned without the dropout of the config (attention_dropout = 0.1)" in read_target(str(copy)).notes[0]
    tensors = load_file(copy / "model.safetensors")
    name = next(name for name in tensors if name.endswith("token_embedding.weight"))
    write(copy / "model.safetensors", {each: array for each, array in tensors.items() if each != name})
    refused(copy, CheckpointError, f"does not fit model: .*{name}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({name: 3 << 50}, f"{name}: expected at most 1,048,576, got 3,3") for name in SIZES),
        ({"vocab_size": 1 << 70}, "vocab_size: expected at most 9,223,372,036,854,775,807, got 1,1"),
        (
            {"max_position_embeddings": 1 << 20, "hidden_size": 1152},
            "max_position_embeddings times hidden_size: expected at most 268,435,456, got 1,207,959,552",
        ),
    ],
)
def test_sizes_beyond_the_network_language_are_fields_of_the_file(
    tmp_path: Path, changes: dict[str, int], words: str
) -> None:
    folder = Path(shutil.copytree(CLIP_GOLDEN / "projected", tmp_path / "model"))
    change_config(folder, **changes)
    for name in ("config.json", "other.json"):
        file = (folder / "config.json").replace(folder / name)
        said = refused(file, CheckpointError, words)
        assert "E_RESOURCE" not in said
        assert (said.count(str(folder)), said.startswith(f"{file}: ")) == (1, True)


def test_parameters_beyond_what_the_network_language_takes_are_planned(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CLIP_GOLDEN / "projected", tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    change_config(folder, hidden_size=1 << 14, intermediate_size=1 << 16, num_hidden_layers=12, num_attention_heads=64)
    result = mila_here("plan", folder, "--budget", "64GiB")
    assert (result.exit_code, result.stderr) == (3, "")
    change_config(folder, hidden_size=1 << 20, intermediate_size=1 << 20, num_hidden_layers=128)
    report = plan(folder, PlanRequest(budget=1 << 40), search=False)
    assert report.parameter_bytes > 1 << 51


def test_the_command_line_plans_it(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = mila_here("plan", FOLDERS[0], "--budget", "1GiB", "--tree", "--html", page)
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.stdout.split())
    assert f"Every text is padded to {T} tokens; there is no cache." in text
    assert "prefill" not in text
    assert "Logits" not in text
    assert page.is_file()
    code, found = document(
        FOLDERS[0], "--mode", "training", "--optimizer", "none", "--accumulate", "2", "--budget", "1GiB"
    )
    assert isinstance(found, PlanReport)
    assert (code, found.gradient_bytes > 0) == (0, True)
    assert any("adds up the gradients of 2 passes" in sentence for sentence in found.assumptions)
    assert json.loads((FOLDERS[0] / "config.json").read_text())["model_type"] == found.target.model_type
