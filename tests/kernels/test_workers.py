"""Workers run every part once, one BLAS thread each, and survive exceptions, re-entry, many users, forks and exits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mila.errors import ConfigurationError
from mila.kernels.cpu.blas import BlasThreads, blas_threads
from mila.kernels.cpu.workers import Workers, split, tile_elements, worker_workspace


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_part_runs_once(threads: int) -> None:
    workers, seen = Workers(threads), list[int]()
    for _ in range(50):
        seen.clear()
        workers.run(seen.append)
        assert sorted(seen) == list(range(threads))
    seen.clear()
    workers.run(seen.append, 2)
    assert sorted(seen) == list(range(min(2, threads)))


def test_parts_run_on_different_threads_at_the_same_time() -> None:
    barrier, names = threading.Barrier(3, timeout=30), set()

    def task(index: int) -> None:
        barrier.wait()
        names.add(threading.get_ident())

    Workers(3).run(task)
    assert len(names) == 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_exception_reaches_the_caller_after_all_parts_have_run(failing: int) -> None:
    workers, finished = Workers(3), []

    def task(index: int) -> None:
        if index == failing:
            raise ValueError(f"part {index}")
        time.sleep(0.01)
        finished.append(index)

    before = blas_threads().count
    for _ in range(3):
        finished.clear()
        with pytest.raises(ValueError, match=f"part {failing}"):
            workers.run(task)
        assert sorted(finished) == [index for index in range(3) if index != failing]
    assert blas_threads().count == before
    workers.run(finished.append)


@pytest.mark.skipif(not blas_threads().controlled, reason="NumPy runs on a BLAS whose threads cannot be set")
def test_blas_has_one_thread_inside_and_its_own_number_outside() -> None:
    blas = blas_threads()
    region, inside = blas.begin(2), list[int]()
    try:
        Workers(2).run(lambda index: inside.append(blas.count))
        assert inside == [1, 1]
        assert blas.count == 2
    finally:
        blas.end(region)


def test_a_task_may_use_the_workers_itself() -> None:
    workers, seen = Workers(2), []
    workers.run(lambda outer: workers.run(lambda inner: seen.append((outer, inner))))
    assert sorted(seen) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_users_on_several_threads_share_the_workers() -> None:
    workers, before = Workers(2), blas_threads().count
    totals = np.zeros((4, 2), np.int64)

    def user(row: int) -> None:
        def task(index: int) -> None:
            totals[row, index] += 1

        for _ in range(300):
            workers.run(task)

    users = [threading.Thread(target=user, args=(row,)) for row in range(4)]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join()
    assert (totals == 300).all()
    assert blas_threads().count == before


def test_threads_start_when_needed_and_end_with_their_owner() -> None:
    def helpers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("mila-worker")}

    before = helpers()
    workers = Workers(3)
    assert helpers() == before
    workers.run(lambda index: None)
    own = helpers() - before
    assert len(own) == 2
    assert all(thread.daemon for thread in own)
    del workers
    gc.collect()
    for thread in own:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in own)


def test_fewer_than_one_thread_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="got 0"):
        Workers(0)


SCRIPT_HEAD = """
import os, signal, sys, threading, time
from mila.kernels.cpu.workers import Workers
workers = Workers(2)
workers.run(lambda index: None)
"""
FORK = """
process = os.fork()
if process == 0:
    seen = []
    workers.run(seen.append)
    os._exit(0 if sorted(seen) == [0, 1] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""
INTERRUPT = """
finished = []
def task(index):
    if index == 0:
        signal.raise_signal(signal.SIGINT)
    time.sleep(0.2)
    finished.append(index)
try:
    workers.run(task)
except KeyboardInterrupt:
    assert finished == [1], finished
else:
    sys.exit(1)
def interrupted_wait(index):
    if index == 1:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        finished.append("late")
try:
    workers.run(interrupted_wait)
    time.sleep(5)
except KeyboardInterrupt:
    assert finished[-1] == "late", finished
else:
    sys.exit(1)
seen = []
workers.run(seen.append)
assert sorted(seen) == [0, 1]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
@pytest.mark.parametrize("script", ["", FORK, INTERRUPT], ids=["exit", "fork", "interrupt"])
def test_a_process_ends_well(script: str) -> None:
    """Idle helpers do not keep a process, a forked child has its own, and an interrupt leaves no part running."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT_HEAD + script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_blas_regions_nest_and_overlap() -> None:
    """The smallest number holds while a region is open; the last to end brings the first number back."""
    state = [4]

    def put(count: int) -> None:
        state[0] = count

    blas = BlasThreads(lambda: state[0], put)
    products = blas.begin(2)
    assert state == [2]
    first = blas.begin(1)
    assert state == [1]
    second = blas.begin(1)
    blas.end(first)
    assert state == [1]
    blas.end(products)
    assert state == [1]
    blas.end(second)
    assert state == [4]


def test_an_unknown_blas_is_left_alone() -> None:
    blas = BlasThreads(None, None)
    blas.end(blas.begin(3))
    assert not blas.controlled
    assert blas.count == 0


@pytest.mark.parametrize(("rows", "parts"), [(0, 2), (1, 3), (7, 2), (12, 5)])
def test_parts_cover_all_rows_in_order(rows: int, parts: int) -> None:
    ranges = [split(rows, index, parts) for index in range(parts)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(rows))
    assert max(stop - start for start, stop in ranges) - min(stop - start for start, stop in ranges) <= 1


def test_workspaces_of_workers_do_not_overlap() -> None:
    workspace = np.zeros(10)
    for index in range(3):
        worker_workspace(workspace, index, 3)[:] += 1
    assert workspace.tolist() == [1.0] * 9 + [0.0]


def test_tiles_hold_at_least_a_row_and_grow_with_the_work() -> None:
    assert tile_elements(0, 5) == 5
    assert tile_elements(3, 5) == 15
    assert tile_elements(10**6, 10**3) == 262144
    assert tile_elements(2, 10**6) == 10**6
