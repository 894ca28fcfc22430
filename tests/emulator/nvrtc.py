"""The compile gate: kernels to machine code of real architectures with NVRTC, which needs no GPU and no driver.

g++ accepts what a GPU compiler refuses: standard headers, host functions, too much shared memory. NVRTC is the compiler
that CuPy runs, and assembling to CUBIN, not only to PTX, finds what does not fit a processor. It also says what each
kernel takes: registers, spills, shared memory.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.emulator import source, toolchain
from tests.emulator.errors import CompileError, MissingToolError

#: Compute capabilities 8.0 (A100), 9.0 (H100), 10.0 (B200).
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_FOUND = "libnvrtc.so.*"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes on one architecture; bytes are per thread, shared memory is per block.

    Attributes:
        registers: Of each thread.
        spill_stores: Bytes that did not fit the registers and are written to memory.
        spill_loads: The same, read back.
        stack_frame: Bytes of local memory, spills included.
        static_shared: Bytes of shared memory beside what a launch asks for.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack_frame: int
    static_shared: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A source that was compiled for one architecture."""

    architecture: str
    cubin: bytes
    resources: dict[str, Resources]  # by kernel: its name, or its name expression


def missing_nvrtc() -> str | None:
    """Return why nothing can be compiled for a GPU on this machine, or None."""
    try:
        _nvrtc()
        toolchain.cuda_include()
    except MissingToolError as error:
        return str(error)
    return None


def version() -> tuple[int, int]:
    """Return NVRTC's version. Register counts are comparable within one version only."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def compile_file(path: Path, architecture: str, names: Sequence[str] = (), options: Sequence[str] = ()) -> Compiled:
    """Compile a file, which may include others of its folder; see `compile_text`."""
    return compile_text(path.read_text("utf-8"), architecture, names, [*options, f"-I{path.parent}"], path.name)


def compile_text(
    text: str,
    architecture: str,
    names: Sequence[str] = (),
    options: Sequence[str] = (),
    filename: str = "kernel.cu",
) -> Compiled:
    """Compile a source to the machine code of an architecture.

    Args:
        text: CUDA C++.
        architecture: Of the form ``sm_90``.
        names: Name expressions of kernels that are not ``extern "C"``.
        options: More options for NVRTC.
        filename: What messages call the file.

    Raises:
        CompileError: With what NVRTC or the assembler said.
        MissingToolError: If NVRTC is not installed.
    """
    program = ctypes.c_void_p()
    _check(
        _nvrtc().nvrtcCreateProgram(ctypes.byref(program), text.encode(), filename.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        for name in names:
            _check(_nvrtc().nvrtcAddNameExpression(program, name.encode()), "nvrtcAddNameExpression")
        every_option = [
            "-std=c++17",
            f"-arch={architecture}",
            f"-I{toolchain.cuda_include()}",
            "--ptxas-options=-v",
            *options,
        ]
        encoded = (ctypes.c_char_p * len(every_option))(*[option.encode() for option in every_option])
        status = _nvrtc().nvrtcCompileProgram(program, len(every_option), encoded)
        log = _read(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
        if status:
            raise CompileError(f"{filename} for {architecture}:\n{log[:6000]}")
        cubin = _read(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        lowered = {_lowered_name(program, name): name for name in names}
    finally:
        _nvrtc().nvrtcDestroyProgram(ctypes.byref(program))
    offered = set(source.kernel_names(text, names))
    resources = {lowered.get(name, name): used for name, used in parse_log(log).items()}
    return Compiled(architecture, cubin, {name: used for name, used in resources.items() if name in offered})


def parse_log(log: str) -> dict[str, Resources]:
    """Read the assembler's verbose output; keys are the names of the machine code."""
    found: dict[str, Resources] = {}
    entries = list(_ENTRY.finditer(log))
    ends = [entry.start() for entry in entries[1:]] + [len(log)]
    for entry, end in zip(entries, ends, strict=True):
        part = log[entry.end() : end]
        frame, registers, shared = _FRAME.search(part), _REGISTERS.search(part), _SHARED.search(part)
        if frame is None or registers is None:
            raise CompileError(f"the assembler's output is not understood:\n{part[:1000]}")
        stack, stores, loads = (int(number) for number in frame.groups())
        found[entry["name"]] = Resources(int(registers[1]), stores, loads, stack, int(shared[1]) if shared else 0)
    return found


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    for folder in toolchain.wheel_folders():
        for path in sorted((folder / "lib").glob(_FOUND)):
            library = ctypes.CDLL(str(path))
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            return library
    raise MissingToolError("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")


def _check(status: int, call: str) -> None:
    if status:
        raise CompileError(f"{call}: {_nvrtc().nvrtcGetErrorString(status).decode()}")


def _read(program: ctypes.c_void_p, size_call: str, read_call: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(_nvrtc(), size_call)(program, ctypes.byref(size)), size_call)
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(_nvrtc(), read_call)(program, buffer), read_call)
    return buffer.raw


def _lowered_name(program: ctypes.c_void_p, name: str) -> str:
    lowered = ctypes.c_char_p()
    _check(_nvrtc().nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)), "nvrtcGetLoweredName")
    assert lowered.value is not None
    return lowered.value.decode()
