"""The emulator's C++ engine, compiled once and loaded once per process, as Python calls."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.emulator import toolchain
from tests.emulator.errors import Index, KernelError, Kind, Place, Report

#: One call at a time: the engine's state is global. Reentrant: the garbage collector may free an array at any time.
_LOCK = threading.RLock()


class ParameterRecord(ctypes.Structure):
    """``emulator::Parameter`` of runtime/interface.h."""

    _fields_ = (
        ("code", ctypes.c_char),
        ("pointee_code", ctypes.c_char),
        ("pointee_is_const", ctypes.c_bool),
        ("size", ctypes.c_uint),
        ("pointee_size", ctypes.c_uint),
        ("type", ctypes.c_char_p),
    )


class KernelRecord(ctypes.Structure):
    """``emulator::KernelDescription`` of runtime/interface.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("touch_shared_storage", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(ParameterRecord)),
        ("parameter_count", ctypes.c_uint),
        ("maximum_threads", ctypes.c_uint),
    )


class ReportRecord(ctypes.Structure):
    """``emulator::Report`` of runtime/engine/reports.h."""

    _fields_ = (
        ("kind", ctypes.c_char_p),
        ("message", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int),
        ("address", ctypes.c_size_t),
        ("other_address", ctypes.c_size_t),
        ("has_thread", ctypes.c_bool),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
    )


@functools.cache
def engine() -> ctypes.CDLL:
    """Return the engine, whose symbols kernel modules are linked against when they are loaded."""
    sources = sorted((toolchain.RUNTIME / "engine").glob("*.cpp"))

    def build(folder: Path) -> None:
        objects = toolchain.compile_all(sources, ["-O2", "-g1"], folder)
        toolchain.compile_cpp(["-shared", *objects, "-o", "engine.so"], folder)
        for path in objects:
            path.unlink()

    library = ctypes.CDLL(
        str(toolchain.compile_once("engine", ["engine"], build) / "engine.so"), mode=ctypes.RTLD_GLOBAL
    )
    dimensions = ctypes.POINTER(ctypes.c_uint)
    library.emulator_launch.argtypes = [
        ctypes.POINTER(KernelRecord),
        dimensions,
        dimensions,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        ctypes.c_bool,
        ctypes.c_double,
    ]
    library.emulator_launch.restype = ctypes.c_bool
    library.emulator_report_count.restype = ctypes.c_uint
    library.emulator_report.argtypes = [ctypes.c_uint]
    library.emulator_report.restype = ctypes.POINTER(ReportRecord)
    library.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    library.emulator_allocate.restype = ctypes.c_size_t
    library.emulator_free.argtypes = [ctypes.c_size_t]
    library.emulator_free.restype = ctypes.c_bool
    return library


def allocate(nbytes: int, alignment: int) -> int:
    """Return the address of device memory, every byte 0xff; guard pages surround it."""
    with _LOCK:
        address: int = engine().emulator_allocate(nbytes, alignment)
    if not address:
        raise MemoryError(f"no {nbytes} bytes for the emulated device")
    return address


def free(address: int) -> bool:
    """Give memory back; whether there was any. Kernels that use it afterwards are found."""
    with _LOCK:
        return bool(engine().emulator_free(address))


def run(
    name: str,
    record: KernelRecord,
    library: Path,
    grid: Index,
    block: Index,
    shared_memory: int,
    arguments: Sequence[ctypes.Array[ctypes.c_char]],
    *,
    order: int,
    checking: bool,
    time_limit: float,
) -> None:
    """Run a kernel to its end. Limits and arguments must have been checked.

    Args:
        name: The kernel's, for errors.
        record: What the kernel's module says about it.
        library: The module's file.
        grid: Blocks along x, y, z.
        block: Threads along x, y, z.
        shared_memory: Dynamic shared memory in bytes.
        arguments: The bytes of each parameter.
        order: 0 forward, 1 reverse, more: shuffled with that seed.
        checking: Whether the module was compiled with checks.
        time_limit: In seconds of processor time.

    Raises:
        KernelError: With everything that was found.
    """
    values = (ctypes.c_void_p * max(1, len(arguments)))(*[ctypes.addressof(argument) for argument in arguments])
    dimensions = ctypes.c_uint * 3
    with _LOCK:
        clean = engine().emulator_launch(
            ctypes.byref(record),
            dimensions(*grid),
            dimensions(*block),
            shared_memory,
            values,
            order,
            checking,
            time_limit,
        )
        if clean:
            return
        records = [engine().emulator_report(i).contents for i in range(engine().emulator_report_count())]
        reports = list(_distinct(_report(record, library) for record in records))
    raise KernelError(name, reports)


def _report(record: ReportRecord, library: Path) -> Report:
    place = Place(record.file.decode(), record.line) if record.file else source_place(library, record.address)
    return Report(
        kind=Kind(record.kind.decode()),
        message=record.message.decode(),
        place=place,
        other_place=source_place(library, record.other_address),
        block=_index(record.block) if record.has_thread else None,
        thread=_index(record.thread) if record.has_thread else None,
    )


def _index(values: Sequence[int]) -> Index:
    return values[0], values[1], values[2]


def _distinct(reports: Iterator[Report]) -> Iterator[Report]:
    """Leave out what says the same of the same line."""
    seen = set()
    for report in reports:
        key = (report.kind, report.place or report.message)
        if key not in seen:
            seen.add(key)
            yield report


def source_place(library: Path, return_address: int) -> Place | None:
    """Return the line that the instruction before a return address comes from.

    Of the chain of inlined functions this is the innermost that is not the emulator's or CUDA's. Where that is in a
    header of kernels (``.cuh``), whose functions serve many, it is the line that called it, with the header's.
    """
    if not return_address:
        return None
    done = subprocess.run(
        ["addr2line", "-i", "-e", str(library), hex(return_address - 1)], capture_output=True, text=True, check=True
    )
    places = []
    for line in done.stdout.splitlines():
        file, _, number = line.split(" (discriminator")[0].rpartition(":")
        if number.isdigit() and file != "??":
            places.append(Place(file, int(number)))
    headers = (str(toolchain.RUNTIME), str(toolchain.cuda_include()), "/usr/")
    own = [place for place in places if not place.file.startswith(headers)]
    named = [Place(Path(place.file).name, place.line) for place in own or places]
    if not named:
        return None
    kernel = next((place for place in named if not place.file.endswith(".cuh")), named[0])
    return kernel if kernel == named[0] else replace(kernel, inner=named[0])
