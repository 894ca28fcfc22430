"""Commands with ``--device cuda:0``: numbers, texts and documents are those of the CPU, and so are files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mila.cli import demo, demo_run
from mila.cli.app import app
from mila.devices import ExecutionContext, execution_context
from mila.devices import host as host_device
from mila.models import GptConfig, GptTransformer
from mila.training import (
    ConstantSchedule,
    StepReport,
    Trainer,
    TrainerConfig,
    TrainingEvent,
    load_model,
    read_training_state,
    split_tokens,
)
from tests.cli.commands import TINY, documents, mila_here, write_text
from tests.cli.test_embed import TEXTS, write_clip
from tests.cuda.conftest import BACKEND, CUDA_0, Emulated
from tests.cuda.test_components import NoRoom
from tests.generation.text_models import CHATML, write_model

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

#: Largest difference from the CPU, relative to the number.
TOLERANCE = 1e-4
ON_CUDA = ("--device", "cuda:0")
#: A run whose every step leaves a checkpoint.
STEPS = [*TINY, "--checkpoint-every", "1", "--keep-last", "9", "--dropout", "0.2", "--accumulation", "2"]
#: What takes its own time on each machine, or depends on what else is there.
MEASURED = ("available_bytes", "resident_bytes", "tokens_per_second", "seconds")

#: The emulated device serves by itself; a real one only those who ask for it.
pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A run of the CPU's, and its documents."""
    folder = tmp_path_factory.mktemp("runs") / "cpu"
    return folder, printed("train", text, "--out", folder, "--json", *STEPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that chats."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny", positions=64, chat_template=CHATML)


def printed(*arguments: str | Path, given: str | None = None) -> list[dict[str, Any]]:
    """The documents that a command prints."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=given)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return documents(result.stdout)


def assert_alike(found: Any, expected: Any, where: str = "") -> None:
    """The same keys and values; floats within the tolerance, times and sizes aside."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            if not any(name.endswith(measured) for measured in MEASURED):
                assert_alike(found[name], expected[name], f"{where}.{name}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], float | list | dict):
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other, where)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=1e-6, err_msg=where)
    else:
        assert found == expected, where


# ---------------------------------------------------------------------- training


def test_a_run_has_the_losses_and_the_documents_of_the_cpu(
    tmp_path: Path, text: Path, on_cpu: tuple[Path, list[dict[str, Any]]]
) -> None:
    run, expected = on_cpu
    here = tmp_path / run.name
    found = printed("train", text, "--out", here, "--json", *ON_CUDA, *STEPS)
    assert [each.keys() for each in found] == [each.keys() for each in expected]
    for one, other in zip(found[1:], expected[1:], strict=True):  # the plans differ
        assert_alike({**one, "path": "", "last_checkpoint": ""}, {**other, "path": "", "last_checkpoint": ""})
    assert sorted(path.name for path in here.iterdir()) == sorted(path.name for path in run.iterdir())


def test_the_plan_is_that_of_the_device(tmp_path: Path, text: Path, cuda: CudaDevice) -> None:
    (plan,) = printed("train", text, "--out", tmp_path, "--json", "--plan-only", *ON_CUDA, *TINY)
    arenas = [size for size in plan["arenas"].values() if size]
    assert plan["reserved_bytes"] == sum(arenas) + cuda.alignment * len(arenas)
    assert plan["available_bytes"] == cuda.available_bytes()
    before = cuda.used_bytes()
    result = mila_here("train", text, "--out", tmp_path / "run", *ON_CUDA, *TINY, "--steps", "1")
    assert f"fits: needs {plan['reserved_bytes']:,} bytes" in result.stdout, result.output
    assert "built; memory in use on cuda:0 grew by" in result.stdout
    cuda.synchronize()
    assert cuda.used_bytes() == before


def test_what_fits_is_asked_of_the_device_alone(
    tmp_path: Path, text: Path, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: list[str | Path] = ["train", text, "--out", tmp_path / "run", "--plan-only", *TINY]
    with monkeypatch.context() as little_on_the_host:
        little_on_the_host.setattr(host_device, "available_host_bytes", lambda: 1000)
        assert [mila_here(*arguments, *options).exit_code for options in ((), ON_CUDA)] == [3, 0]
    monkeypatch.setattr(type(cuda), "available_bytes", lambda self: 1000)
    refused = mila_here(*arguments, *ON_CUDA)
    assert (mila_here(*arguments).exit_code, refused.exit_code) == (0, 3)
    assert refused.stderr.startswith("mila: does not fit: needs ")
    assert refused.stderr.endswith("1000 B are available\n")


@pytest.mark.parametrize(("first", "second"), [((), ON_CUDA), (ON_CUDA, ())], ids=["to CUDA", "to the CPU"])
def test_a_run_goes_on_on_the_other_device(
    first: Sequence[str],
    second: Sequence[str],
    tmp_path: Path,
    text: Path,
    on_cpu: tuple[Path, list[dict[str, Any]]],
) -> None:
    """Interrupted after three steps of a schedule of six."""
    whole, expected = on_cpu
    begun = whole
    if first:
        begun = tmp_path / "begun"
        printed("train", text, "--out", begun, "--json", *first, *STEPS)
    shutil.copytree(begun / "step-00000003", tmp_path / "run" / "step-00000003")
    found = printed("train", text, "--out", tmp_path / "run", "--resume", "--json", *second)
    steps = [each for each in found if each["event"] == "step"]
    assert_alike(steps, [each for each in expected if each["event"] == "step"][3:])
    assert read_training_state(tmp_path / "run" / "step-00000006").update_count == 6


def test_a_checkpoint_holds_the_bytes_of_the_device(tmp_path: Path, text: Path) -> None:
    """Written by one and read by the other, parameters are what they were, bit for bit."""
    printed("train", text, "--out", tmp_path, "--json", *ON_CUDA, *TINY)
    on_cuda, on_host = (load_model(tmp_path, device) for device in ("cuda:0", "cpu"))
    for one, other in zip(on_cuda.get_parameters(), on_host.get_parameters(), strict=True):
        np.testing.assert_array_equal(on_cuda.device.download(one), other)


def test_training_allocates_nothing_after_the_build(
    tmp_path: Path, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the ids of a step, nor for those of a validation whose last batch is short, nor for checkpoints."""
    network = GptTransformer(
        "gpt", GptConfig(vocab_size=7, embedding_dim=8, num_layers=1, num_heads=2, max_seq_len=8), device="cuda:0"
    )
    config = TrainerConfig(
        steps=4,
        batch_size=3,
        sequence_length=8,
        accumulation_steps=2,
        schedule=ConstantSchedule(initial=1e-2),
        validate_every=2,
        checkpoint_every=1,
    )
    split = split_tokens(np.tile(np.arange(7, dtype=np.int32), 60), 0.2)
    trainer = Trainer(network, split, config, tmp_path)
    built = trainer.build()
    assert built.allocated_bytes == built.predicted_bytes
    ids = [each.name for each in built.plan.buffers if each.path == "training_step" and each.shape == (3, 8)]
    assert ids[-2:] == ["ids", "targets"]
    used, seen = cuda.used_bytes(), []

    def watch(event: TrainingEvent) -> None:
        if isinstance(event, StepReport):
            seen.append(cuda.used_bytes())

    trainer.run(watch, until=2)
    assert seen == [used, used]
    monkeypatch.setattr(cuda, "pool", NoRoom())
    trainer.run()
    cuda.synchronize()


# ---------------------------------------------------------------------- texts


def test_a_run_of_either_device_writes_the_same_greedy_text(
    tmp_path: Path, text: Path, on_cpu: tuple[Path, list[dict[str, Any]]]
) -> None:
    printed("train", text, "--out", tmp_path / "run", "--json", *ON_CUDA, *STEPS)
    for run in (tmp_path / "run", on_cpu[0]):
        arguments = ("sample", run, "--prompt", "the quick", "--length", "12", "--temperature", "0")
        here, there = (mila_here(*arguments, *options) for options in ((), ON_CUDA))
        assert (there.exit_code, there.stdout) == (0, here.stdout), there.output
        assert len(here.stdout) == len("the quick") + 12 + 1


def test_a_prompt_is_continued_as_on_the_cpu(folder: Path) -> None:
    arguments = ("generate", folder, "the quick brown", "--max-new-tokens", "12")
    here, there = (mila_here(*arguments, *options) for options in ((), ON_CUDA))
    assert (there.exit_code, there.stdout) == (0, here.stdout), there.output
    (expected,), (found,) = (printed(*arguments, "--json", *options) for options in ((), ON_CUDA))
    assert found["reserved_bytes"] != expected["reserved_bytes"], "the plans differ"
    assert_alike({**found, "reserved_bytes": 0}, {**expected, "reserved_bytes": 0})


def test_a_model_that_does_not_fit_the_device_is_exit_code_3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("generate", folder, "the quick brown", "--max-new-tokens", "2")
    loaded = mila_here(*arguments, *ON_CUDA)
    assert " reserved on cuda:0 for " in loaded.stderr, loaded.output
    monkeypatch.setattr(ExecutionContext, "available_bytes", lambda self: 1000 if self.device_id == CUDA_0 else None)
    here, there = (mila_here(*arguments, *options) for options in ((), ON_CUDA))
    assert (here.exit_code, there.exit_code, there.stdout, there.stderr.count("\n")) == (0, 3, "", 1)


def test_a_conversation_is_that_of_the_cpu(folder: Path) -> None:
    arguments = ("chat", folder, "--max-new-tokens", "4", "--json")
    here, there = (printed(*arguments, *options, given="quick fox\nthe lazy dog\n") for options in ((), ON_CUDA))
    assert [each["text"] for each in there] == [each["text"] for each in here]
    assert_alike([{**each, "reserved_bytes": 0} for each in there], [{**each, "reserved_bytes": 0} for each in here])
    assert there[1]["reused_tokens"] > 0


def test_embeddings_are_those_of_the_cpu(tmp_path: Path) -> None:
    arguments: list[str | Path] = ["embed", write_clip(tmp_path / "clip"), *TEXTS, "--json", "--batch-size", "2"]
    (expected,), (found,) = (printed(*arguments, *options) for options in ((), ON_CUDA))
    for name in ("embeddings", "similarities", "norms"):
        np.testing.assert_allclose(found.pop(name), expected.pop(name), rtol=TOLERANCE, atol=1e-5)
    assert found == expected


# ---------------------------------------------------------------------- the demo


def test_the_demo_holds_what_it_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other processes are played in this one, which has the device."""

    def settings(**chosen: Any) -> demo_run.DemoSettings:
        sizes: dict[str, Any] = {"width": 8, "layers": 1, "heads": 2, "batch_size": 2, "sequence_length": 16}
        return demo_run.DemoSettings(**chosen, **sizes, corpus_bytes=60_000, validation_batches=1)

    def here(task: str, chosen: demo_run.DemoSettings, *arguments: str) -> Any:
        return demo_run.measured(chosen) if task == "measure" else demo_run.resumed_steps(chosen, *arguments)

    monkeypatch.setattr(demo, "DemoSettings", settings)
    monkeypatch.setattr(demo, "_in_a_new_process", here)
    monkeypatch.setattr(demo, "bigram_loss", lambda *tokens: 99.0)
    monkeypatch.setattr(demo, "_SAMPLE_LENGTH", 8)
    result = mila_here("demo", "--steps", "12", "--out", tmp_path / "demo", *ON_CUDA)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\nyes  ") == 3
    assert ", as cuda:0 counts it\n" in result.stdout
    assert " more on the host, in a fresh process\n" in result.stdout


# ---------------------------------------------------------------------- refusals


def test_a_device_that_is_not_here_is_one_line_before_anything_is_read(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_context, "_cuda_device", emulated.modules[BACKEND].CudaDevice)
    for command in (["train", "nowhere", "--out", "nowhere"], ["sample", "nowhere"], ["generate", "nowhere", "a"]):
        result = mila_here(*command, "--device", "cuda:9")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "mila: device cuda:9: does not exist on this machine; there is cuda:0 alone\n"
