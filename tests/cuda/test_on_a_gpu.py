"""``pytest -m gpu`` takes the same cases by the same names, and skips them with a reason where there is no device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
#: Cases in every way of running them, cases with options, and tests that only ask for the device.
FILES = ("test_kernels.py", "test_rope.py", "test_models.py")
#: Of the thousands of kernels' cases, some.
CHOSEN = ("-k", "not test_kernels or softmax or test_all_kernels")
#: What a GPU has not, or what needs no device.
LEFT_OUT = re.compile(r"-fast-[12]|-check-0|::test_all_kernels_are_there")


def pytest_says(*options: str) -> str:
    """What a run of pytest over ``FILES`` prints, where no device is to be seen."""
    files = [str(FOLDER / name) for name in FILES]
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *CHOSEN, *options, *files]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "1000"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_a_gpu_gets_the_cases_of_the_emulated_device() -> None:
    names = set(re.findall(r"^tests\S*::.*$", pytest_says("--collect-only", "-q"), re.MULTILINE))
    report = pytest_says("-m", "gpu", "-v")
    skipped = dict(re.findall(r"^(tests\S*::.*) SKIPPED \((.*)\) +\[ *\d+%\]$", report, re.MULTILINE))
    assert skipped.keys() <= names
    left_out = names - skipped.keys()
    assert {name for name in left_out if not LEFT_OUT.search(name)} == set()
    assert not any(map(LEFT_OUT.search, skipped))
    assert f" {len(skipped)} skipped, " in report and " passed" not in report
    (reason,) = set(skipped.values())
    assert reason.startswith(("cupy is not installed", "no CUDA device"))
