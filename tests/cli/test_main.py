"""The command line as a whole: help, version, exit codes, and the environment that NumPy meets."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mila
from mila.planning import Failure
from mila.planning.inspection_report import Refusal
from mila.planning.inspection_schema import read_document as read_answer
from mila.planning.schema import read_document
from tests.cli.commands import environment, mila_here, mila_process

COMMANDS = (
    "plan",
    "inspect",
    "compare",
    "train",
    "sample",
    "generate",
    "chat",
    "embed",
    "demo",
    "import",
    "network",
)
PROBE = """
import os, sys

def watch(event, arguments):
    if event == "import" and arguments[0] == "numpy":
        print("numpy meets", os.environ.get("OPENBLAS_THREAD_TIMEOUT"), flush=True)

sys.addaudithook(watch)
from mila.cli.main import main
main()
"""


def test_version() -> None:
    result = mila_process("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"mila {mila.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    result = mila_here(command, "--help")
    assert result.exit_code == 0
    assert f"Example: mila {command}" in result.output


def test_help_names_the_commands_and_the_exit_codes() -> None:
    result = mila_here("--help")
    for word in (*COMMANDS, "3 does not fit", "130 interrupted"):
        assert word in " ".join(result.output.split())


@pytest.mark.parametrize("arguments", [("paint",), ("train",), ("train", "a.txt"), ("sample", "run", "--length", "x")])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = mila_here(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr or "Error" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        (["--version"], {}, "4"),
        (["--version"], {"OPENBLAS_THREAD_TIMEOUT": "26"}, "26"),
        (["train", "--help"], {}, "4"),
        (["generate", "--help"], {}, "20"),
        (["chat", "--help"], {}, "20"),
        (["sample", "--help"], {}, "20"),
    ],
)
def test_numpy_is_loaded_after_its_environment_is_set(
    arguments: list[str], given: dict[str, str], expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env=environment(**given),
        capture_output=True,
        text=True,
        check=True,
    )
    met = [line for line in done.stdout.splitlines() if line.startswith("numpy meets")]
    assert set(met) == {f"numpy meets {expected}"}


def test_little_is_loaded_before_ctrl_c_is_taken_care_of() -> None:
    """Until then it ends in a traceback."""
    probe = "import signal, sys; known = {*sys.modules}; import mila.cli.main; print(*sorted({*sys.modules} - known))"
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} <= {"__future__", "mila", "mila.cli", "mila.cli.main"}


INTERRUPTED = """
import os, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == module:
        os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.addaudithook(interrupt)
from mila.cli.main import main
main()
print("went on")
"""


@pytest.mark.parametrize("module", ["numpy", "typer", "mila.cli.train", "mila.models"])
def test_ctrl_c_while_modules_are_loaded_ends_it(module: str) -> None:
    done = interrupted(module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def interrupted(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that Ctrl-C meets while it loads a module."""
    command = [sys.executable, "-c", INTERRUPTED, module, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [("plan", "gpt2"), ("plan",), ("inspect", "a"), ("compare", "a", "b")])
def test_ctrl_c_while_modules_are_loaded_is_a_document_with_json(arguments: tuple[str, ...]) -> None:
    done = interrupted("numpy", *arguments, "--json")
    assert (done.returncode, done.stderr) == (130, "")
    read = read_document if arguments[0] == "plan" else read_answer
    refusal = read(done.stdout)
    assert isinstance(refusal, Failure | Refusal)
    assert (refusal.message, refusal.exit_code) == ("interrupted", 130)


@pytest.mark.parametrize("command", ["--version", "--help", *COMMANDS])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_one_line(command: str, closed: str) -> None:
    shell = f'"$@" {closed}'
    given = [sys.executable, "-W", "error", "-m", "mila.cli.main", command]
    done = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *given], env=environment(), capture_output=True, text=True, check=False
    )
    said = "" if "2>" in closed else "mila: standard output is closed: there is nowhere to print to\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
