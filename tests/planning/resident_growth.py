"""By how much builds of random models make the resident memory of a process grow.

    python -m tests.planning.resident_growth COUNT FOLDER

Every build has a process of its own, a copy of one that has imported everything and built once. For that to hold no
freed memory that a build could take instead of the system's, glibc needs MALLOC_MMAP_THRESHOLD_ in the environment.
Prints planned and grown bytes, one model a line.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from pathlib import Path

from mila.devices import ExecutionContext
from mila.models import GptConfig
from mila.planning import Mode, PlanRequest, Target, plan
from mila.planning.building import build_context, construct
from mila.training.measurement import resident_bytes
from tests.planning.random_models import random_cases, target_of

#: Large vocabularies, so that most models take more than what is allowed for Python's own objects.
VOCABULARY = 20_000
SMALL = target_of(GptConfig(vocab_size=11, embedding_dim=16, num_layers=1, num_heads=4, max_seq_len=8))


def growth(target: Target, request: PlanRequest) -> tuple[int, int]:
    """Return the bytes that a build reserves by its plan, and those by which resident memory grows."""
    report = plan(target, request, search=False)
    root = construct(target, report.choices, ExecutionContext("cpu", threads=1))
    context = build_context(report.choices)
    before = resident_bytes()
    root.build(context)
    after = resident_bytes()
    assert before is not None
    assert after is not None
    return report.reserved_bytes, after - before


def print_in_a_new_process(target: Target, request: PlanRequest) -> None:
    """Print the result of :func:`growth` with what it is about; raises where the process fails."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise RuntimeError(f"{target.config} {request}: the build failed")
        return
    status = 1
    try:
        growth(SMALL, PlanRequest(mode=request.mode))  # maps the parts of libraries that every build uses
        print(*growth(target, request), target.config, request, flush=True)
        status = 0
    except Exception:
        traceback.print_exc()  # nobody else would: the process ends here
    finally:
        os._exit(status)


def main() -> None:
    """Measure all."""
    for mode in Mode:
        growth(SMALL, PlanRequest(mode=mode))
    gc.collect()
    gc.freeze()  # the copies need not look through what is shared
    for target, request in random_cases(int(sys.argv[1]), Path(sys.argv[2]), vocabulary=VOCABULARY):
        print_in_a_new_process(target, request)


if __name__ == "__main__":
    main()
