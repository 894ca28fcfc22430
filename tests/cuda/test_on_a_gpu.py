"""``pytest -m gpu`` takes the same cases by the same names, and skips them with a reason where there is no device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
#: Files of each kind: kernels, components as models, what a device does by itself.
FILES = ("test_kernels.py", "test_models.py", "test_device.py")
#: Of the thousands of kernels' cases, some.
CHOSEN = ("-k", "not test_kernels or softmax or test_all_kernels")
#: What the emulated device alone does.
EMULATED_ALONE = re.compile(r"fast-[12]|check-0|::test_what_mila_cannot_use_|::test_without_|::test_an_index_beyond_|"
                            r"::test_a_device_holds_|::test_inputs_may_still_|::test_a_file_that_does_not_compile_|"
                            r"::test_all_kernels_are_there_")  # fmt: skip


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
    assert {name for name in left_out if not EMULATED_ALONE.search(name)} == set()
    assert not any(map(EMULATED_ALONE.search, skipped))
    assert f" {len(skipped)} skipped, " in report and " passed" not in report
    (reason,) = set(skipped.values())
    assert reason.startswith(("cupy is not installed", "no CUDA device"))
