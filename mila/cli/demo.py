"""``mila demo``: what Mila promises of training, shown and checked on this machine in about a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import mila.errors
from mila.cli.demo_run import DemoSettings, demo_split, demo_trainer, take_last_steps
from mila.cli.device_options import Device, execution_context
from mila.cli.display import print_json, print_text, progress
from mila.cli.failures import REFUSED, leave, reports_errors
from mila.cli.plan_text import plan_document
from mila.cli.train import show_plan
from mila.errors import CheckpointError
from mila.memory import format_bytes
from mila.training import (
    ByteTokenizer,
    TokenSplit,
    TrainingEvent,
    ValidationReport,
    bigram_loss,
    load_model,
    sample_text,
)

#: So many beat the bigram model, on a slow machine too.
_FEWEST_STEPS = 400
_PROMPT = "def "
_SAMPLE_LENGTH = 240

#: Share of the time that goes into updates; validation, the other process and the rest take what is left.
_SHARE_OF_STEPS = 0.8


@dataclass
class _Findings:
    """What was found; ``claims`` says which promises held here."""

    steps: int
    folder: Path
    plan: dict[str, Any]
    predicted_bytes: int = 0
    allocated_bytes: int | None = None
    resident_bytes: int | None = None
    bigram_loss: float = 0.0
    validation_loss: float = 0.0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    here: dict[str, Any] = field(default_factory=dict)
    new_process: dict[str, Any] = field(default_factory=dict)
    sample: str = ""
    claims: dict[str, bool] = field(default_factory=dict)


@reports_errors
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="Take about so long, and 400 steps at least.")] = 60,
    steps: Annotated[int | None, typer.Option(min=12, help="Train for exactly so many steps instead.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; a temporary one, kept, by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data order.")] = 0,
    device: Device = "cpu",
) -> None:
    """Train a small GPT on Python's own library, go on in a new process, sample, and check what Mila promises."""
    context = execution_context(device)
    folder = _folder(out)
    settings = DemoSettings(seed=seed, device=str(context.device_id))
    split = demo_split(settings)
    say = _Speaker(as_json)
    say(f"corpus: {split.training.size:,} bytes of Python's own library, and {split.validation.size:,} held out\n")
    unbuilt = demo_trainer(settings, split, folder)
    if not as_json:
        show_plan(unbuilt, as_json)
    plan = plan_document(unbuilt.plan(), None, unbuilt.step.parameter_count())
    measured = _in_a_new_process("measure", settings)
    chosen = steps if steps is not None else _steps_within(seconds, measured["seconds_per_step"])
    say(f"\n{chosen} steps" + ("" if steps is not None else f", for {seconds:g} s here or {_FEWEST_STEPS} at least"))
    settings = settings.model_copy(update={"steps": chosen})
    findings = _Findings(chosen, folder, plan, resident_bytes=measured["resident_bytes"])
    findings.bigram_loss = bigram_loss(split.training, split.validation, ByteTokenizer().vocab_size)
    _train(settings, split, findings, say)
    _sample(settings, findings, say)
    _conclude(findings, say)


class _Speaker:
    """Prints for people, and nothing where JSON was asked for."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, line: str) -> None:
        if not self.as_json:
            print_text(f"{line}\n")


def _folder(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="mila-demo-"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: expected a new or empty folder for --out")
    return out


def _steps_within(seconds: float, per_step: float) -> int:
    """How many steps take their share of the time."""
    return max(_FEWEST_STEPS, int(seconds * _SHARE_OF_STEPS / per_step))


def _train(settings: DemoSettings, split: TokenSplit, findings: _Findings, say: _Speaker) -> None:
    trainer = demo_trainer(settings, split, findings.folder / "run")
    build = trainer.build(trace_allocations=True)
    findings.predicted_bytes, findings.allocated_bytes = build.predicted_bytes, build.allocated_bytes
    say(f"predicted   {_bytes(build.predicted_bytes)}")
    is_host = trainer.step.device.is_host
    say(f"allocated   {_bytes(build.allocated_bytes)}, as {'NumPy' if is_host else settings.device} counts it")
    say(f"resident    {_bytes(findings.resident_bytes)} more{'' if is_host else ' on the host'}, in a fresh process\n")
    findings.claims["the build took exactly the predicted bytes"] = build.allocated_bytes == build.predicted_bytes
    started = time.perf_counter()
    with progress(settings.steps, show_lines=not say.as_json) as draw:

        def listen(event: TrainingEvent) -> None:
            draw(event)
            if isinstance(event, ValidationReport):
                findings.validation_loss = event.loss

        middle = trainer.run(listen, until=settings.first_steps)
        if middle.interrupted:
            raise KeyboardInterrupt
        findings.here = take_last_steps(trainer, listen)
    findings.seconds = time.perf_counter() - started
    findings.tokens_per_second = settings.steps * trainer.config.tokens_per_step / findings.seconds
    say(f"{settings.steps} steps in {findings.seconds:.1f} s, {findings.tokens_per_second:,.0f} tokens/s\n")
    findings.claims["the network beats the bigram model"] = findings.validation_loss < findings.bigram_loss
    checkpoint = trainer.run_folder.checkpoint_path(settings.first_steps)
    findings.new_process = _in_a_new_process("resume", settings, str(checkpoint), str(findings.folder / "resumed"))
    _compare(settings, findings, say)


def _in_a_new_process(task: str, settings: DemoSettings, *arguments: str) -> Any:
    """What a task of ``mila.cli.demo_run`` prints, with this very Mila.

    Raises:
        CheckpointError: the process failed.
    """
    paths = [str(Path(mila.errors.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "mila.cli.demo_run", task, settings.model_dump_json(), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckpointError(f"demo: {task} in a new process failed: {reason}")
    return json.loads(done.stdout)


def _compare(settings: DemoSettings, findings: _Findings, say: _Speaker) -> None:
    say("step   loss here            loss in a new process that resumed")
    pairs = zip(findings.here["losses_and_norms"], findings.new_process["losses_and_norms"], strict=False)
    for number, ((here, _), (there, _)) in enumerate(pairs, settings.first_steps + 1):
        say(f"{number:<6} {here!r:<20} {there!r}")
    say(f"parameters here:  sha256 {findings.here['parameters_sha256'][:32]}…")
    say(f"parameters there: sha256 {findings.new_process['parameters_sha256'][:32]}…\n")
    findings.claims["a resumed run is the uninterrupted one, bit for bit"] = findings.here == findings.new_process


def _sample(settings: DemoSettings, findings: _Findings, say: _Speaker) -> None:
    """From the checkpoint, so that loading is shown too."""
    model = load_model(findings.folder / "run", settings.device)
    findings.sample = sample_text(model, ByteTokenizer(), _PROMPT, _SAMPLE_LENGTH, temperature=0.7)
    say(f"--- sample ---\n{_PROMPT}{findings.sample}\n--------------\n")


def _conclude(findings: _Findings, say: _Speaker) -> None:
    say(f"validation loss {findings.validation_loss:.4f} nats per byte, bigram model {findings.bigram_loss:.4f}")
    for claim, held in findings.claims.items():
        say(f"{'yes' if held else 'NO '}  {claim}")
    say(f"runs and checkpoints: {findings.folder}")
    if say.as_json:
        print_json(asdict(findings))
    failed = [claim for claim, held in findings.claims.items() if not held]
    if failed:
        raise leave(REFUSED, f"demo: not shown: {'; '.join(failed)}")


def _bytes(size: int | None) -> str:
    return "an unknown number of bytes" if size is None else f"{size:,} bytes ({format_bytes(size)})"
