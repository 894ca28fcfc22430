"""Worker threads of the CPU kernels, and the partition of rows into tiles.

NumPy releases the interpreter lock inside its loops, so a kernel runs on several threads when each takes a contiguous
range of rows and works through it tile by tile. The partition is static: with one number of threads, results are always
the same.
"""

from __future__ import annotations

import _thread
import os
import queue
import threading
import weakref
from collections.abc import Callable

from mila.errors import ConfigurationError
from mila.kernels.cpu.blas import blas_threads
from mila.kernels.signatures import Array

#: Elements of the tiles of all threads together; a thread's tile is its share. Measured best for two: 512 KB each.
TILE_ELEMENTS = 262144
#: A kernel of about eight passes runs on the calling thread below this: a hand-off would cost more than it saves.
INLINE_ELEMENTS = 65536

Task = Callable[[int], None]


class _Job:
    """One task for one helper, and the lock that the helper releases when it is done."""

    __slots__ = ("done", "error", "index", "task")

    def __init__(self, task: Task, index: int) -> None:
        self.task = task
        self.index = index
        self.error: BaseException | None = None
        self.done = _thread.allocate_lock()
        self.done.acquire()


class _Helper:
    """A daemon thread that serves jobs from its inbox until it is sent ``None``."""

    def __init__(self, name: str) -> None:
        self.inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self.inbox,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread finish what it was given and end; wait for it, whatever interrupts the wait."""
        while self._thread.is_alive():
            try:
                self.inbox.put(None)
                self._thread.join()
            except KeyboardInterrupt:
                continue


def _serve(inbox: queue.SimpleQueue[_Job | None]) -> None:
    """Run jobs; an exception travels back in its job."""
    while (job := inbox.get()) is not None:
        try:
            job.task(job.index)
        except BaseException as error:
            job.error = error
        done = job.done
        del job  # an idle helper keeps no arrays alive
        done.release()


def _dismiss(helpers: list[_Helper]) -> None:
    """Send helpers home without waiting."""
    for helper in helpers:
        helper.inbox.put(None)


class Workers:
    """``threads`` workers: the calling thread and ``threads - 1`` persistent helpers, started when first needed.

    One object may be used from several threads at once, from inside one of its own tasks, and after a fork: when the
    helpers are busy, the same partition runs on the calling thread, one part after the other, with the same results.
    """

    def __init__(self, threads: int) -> None:
        """Check the number of threads; nothing is started yet."""
        if threads < 1:
            raise ConfigurationError(f"threads: expected at least 1, got {threads}")
        self._threads = threads
        self._helpers: list[_Helper] = []
        weakref.finalize(self, _dismiss, self._helpers)
        self._busy = threading.Lock()
        self._process = os.getpid()

    @property
    def threads(self) -> int:
        """The number of workers, the calling thread included."""
        return self._threads

    def run(self, task: Task, count: int | None = None) -> None:
        """Run ``task(index)`` for every index below ``count`` (default and at most ``threads``) and wait for all.

        BLAS runs at one thread meanwhile. The first exception, by index, is raised after all workers have finished.
        """
        count = self._threads if count is None else min(count, self._threads)
        blas = blas_threads()
        region = blas.begin(1)
        try:
            if os.getpid() != self._process:
                self._forget_parent()
            if count > 1 and self._busy.acquire(blocking=False):
                try:
                    self._run_on_helpers(task, count)
                finally:
                    self._busy.release()
            else:
                for index in range(count):
                    task(index)
        finally:
            blas.end(region)

    def _run_on_helpers(self, task: Task, count: int) -> None:
        while len(self._helpers) < count - 1:
            self._helpers.append(_Helper(f"mila-worker-{len(self._helpers) + 1}"))
        jobs = [_Job(task, index) for index in range(1, count)]
        errors: list[BaseException] = []
        try:
            for helper, job in zip(self._helpers, jobs, strict=False):
                helper.inbox.put(job)
            try:
                task(0)
            except BaseException as error:
                errors.append(error)
            for job in jobs:
                job.done.acquire()
        except BaseException:
            # Interrupted while handing out or waiting: nobody may still write to the caller's arrays when this returns.
            while self._helpers:
                self._helpers[-1].stop()
                self._helpers.pop()
            raise
        errors.extend(job.error for job in jobs if job.error is not None)
        if errors:
            raise errors[0]

    def _forget_parent(self) -> None:
        """After a fork the helpers exist in the parent only, and the lock may have been held by one of its threads."""
        self._helpers.clear()
        self._busy = threading.Lock()
        self._process = os.getpid()


def split(rows: int, index: int, parts: int) -> tuple[int, int]:
    """The contiguous range ``[start, stop)`` of part ``index``; the first ``rows % parts`` parts have one row more."""
    size, extra = divmod(rows, parts)
    start = index * size + min(index, extra)
    return start, start + size + (index < extra)


def worker_workspace(workspace: Array, index: int, threads: int) -> Array:
    """The slice of a flat workspace that belongs to worker ``index`` of ``threads``."""
    size = workspace.size // threads
    return workspace[index * size : (index + 1) * size]


def tile_elements(rows: int, columns: int) -> int:
    """Elements that all threads' row tiles take together, at most: the unit in which workspaces are declared.

    At least one row, at most all of them; grows with both arguments, so that a smaller call fits a larger workspace.
    """
    return max(min(rows * columns, TILE_ELEMENTS), columns)
