"""``--device``: one option of all commands that compute, which refuse what is no device, or not here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mila.devices import execution_context
from tests.cli.commands import mila_here

#: A command line of each, whose files need not be there: the device comes first.
COMMANDS = {
    "train": ("train", "nowhere.txt", "--out", "run"),
    "resume": ("train", "nowhere.txt", "--out", "run", "--resume"),
    "plan only": ("train", "nowhere.txt", "--out", "run", "--plan-only"),
    "sample": ("sample", "nowhere"),
    "generate": ("generate", "nowhere", "once"),
    "chat": ("chat", "nowhere"),
    "embed": ("embed", "nowhere", "once"),
    "demo": ("demo", "--out", "run"),
}
each_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each_command
@pytest.mark.parametrize("device", ["gpu", "cuda:-1", "cuda:", "cuda:01", "cpu:1", ""])
def test_what_names_no_device_is_wrong_usage_as_in_a_plan(command: tuple[str, ...], device: str) -> None:
    planned = mila_here("plan", "gpt2", "--device", device)
    result = mila_here(*command, "--device", device)
    assert (result.exit_code, result.stdout) == (planned.exit_code, "") == (2, "")
    assert result.stderr == planned.stderr
    assert result.stderr.startswith("mila: --device: ")


@each_command
@pytest.mark.parametrize("device", ["cuda:0", "CUDA"])
def test_without_cupy_one_line_says_what_to_install(
    command: tuple[str, ...], device: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_context, "_cuda_device", execution_context._cuda_device.__wrapped__)
    monkeypatch.delitem(sys.modules, "mila.devices.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    result = mila_here(*command, "--device", device)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("mila: device cuda:0: CUDA devices need CuPy, which could not be imported")
    assert "pip install 'cupy-cuda13x[ctk]" in result.stderr
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize("command", ["generate", "chat", "embed"])
def test_threads_are_the_cpus(command: str) -> None:
    result = mila_here(*COMMANDS[command], "--threads", "2", "--device", "cuda:0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "mila: --threads: is an option of --device cpu, got it with cuda:0\n"


@each_command
def test_the_cpu_is_there_by_default_and_by_name(command: tuple[str, ...], elsewhere: Path) -> None:
    """What is refused are the files that are not there."""
    if command[0] == "demo":
        (elsewhere / "run").write_text("a file")
    unnamed, named = mila_here(*command), mila_here(*command, "--device", "cpu")
    assert (named.exit_code, named.stderr) == (unnamed.exit_code, unnamed.stderr) == (1, unnamed.stderr)
    assert "device" not in named.stderr
