"""Kernels that run on the CPU: compile a ``.cu`` text, get its kernels, launch them."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tests.emulator import engine, source, toolchain
from tests.emulator.arguments import Parameter, marshal, memory_usage
from tests.emulator.errors import Index, LaunchError
from tests.emulator.streams import Stream, host_access

#: Orders in which blocks, warps and lanes take turns; any number above shuffles with that seed.
FORWARD, REVERSE, SHUFFLED = 0, 1, 2

DEFAULT_TIME_LIMIT = 20.0
DEFAULT_SHARED_MEMORY = 48 << 10  # what a block gets without asking for more
MOST_SHARED_MEMORY = 227 << 10  # what it can ask for (compute capability 9.0)
MOST_THREADS = 1024
MOST_THREADS_ALONG: Index = (1024, 1024, 64)
MOST_BLOCKS_ALONG: Index = (2**31 - 1, 65535, 65535)


class Mode(Enum):
    """How kernels are compiled; the value holds the compiler's flags."""

    #: Quick. Memory faults, barriers and warp operations are checked, races are not.
    FAST = ("-O1",)
    #: Every access is checked too: races, bounds, alignment, uninitialised shared memory.
    CHECK = ("-O1", "-fsanitize=thread,alignment,bounds", "--param", "tsan-instrument-func-entry-exit=0")
    #: Products and sums are fused as a GPU compiler fuses them: a second set of roundings for tolerances.
    FUSED = ("-O2", "-mfma", "-ffp-contract=fast")
    #: Counts how often each line runs.
    COVERAGE = ("-O0", "--coverage", "-DEMULATOR_COVERAGE")


#: Modules that hold the same template must not share its static variables, hence hidden names. A large frame must not
#: step over the guard page below a stack, hence the protection. What goes through a null pointer must stay to be found.
COMMON_FLAGS = (
    "-g1",
    "-w",
    "-fno-gnu-unique",
    "-fvisibility=hidden",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-delete-null-pointer-checks",
    "-fstack-clash-protection",
)
COVERAGE_LINK_FLAGS = ("--coverage", "-Wl,--wrap=__gcov_exit")


@dataclass(frozen=True, slots=True)
class Run:
    """A way of running kernels."""

    mode: Mode
    order: int

    def __str__(self) -> str:
        return f"{self.mode.name.lower()}-{self.order}"


#: What a correct kernel passes: quick in three orders, and checked.
RUNS = (Run(Mode.FAST, FORWARD), Run(Mode.FAST, REVERSE), Run(Mode.FAST, SHUFFLED), Run(Mode.CHECK, FORWARD))


class Module:
    """The compiled kernels of one source text.

    Args:
        text: CUDA C++. Kernels declared ``extern "C" __global__ void`` are found by themselves.
        names: Name expressions of the other kernels, ``scale<float>``.
        options: ``-D``, ``-U`` and ``-I`` options.
        mode: How to compile.
        filename: What reports call the file.

    Raises:
        CompileError: With what g++ said.
    """

    def __init__(
        self,
        text: str,
        names: Sequence[str] = (),
        options: Sequence[str] = (),
        mode: Mode = Mode.FAST,
        filename: str = "kernel.cu",
    ) -> None:
        self.mode = mode
        self.filename = filename
        self.names = source.kernel_names(text, names)
        self.folder = _build(source.translation_unit(text, self.names, filename), tuple(options), mode)
        self.library_path = self.folder / "module.so"
        engine.engine()  # kernels are linked against it
        self.library = ctypes.CDLL(str(self.library_path))
        self.library.emulator_kernel.restype = ctypes.POINTER(engine.KernelRecord)

    @classmethod
    def from_file(
        cls, path: Path, names: Sequence[str] = (), options: Sequence[str] = (), mode: Mode = Mode.FAST
    ) -> Module:
        """Compile a file, which may include others of its folder."""
        return cls(path.read_text("utf-8"), names, [*options, f"-I{path.parent}"], mode, path.name)

    def kernel(self, name: str) -> Kernel:
        """Return a kernel by the name it was compiled under.

        Raises:
            LaunchError: If the module has none of that name.
        """
        if name not in self.names:
            raise LaunchError(f"{self.filename} has no kernel {name}; it has {', '.join(self.names) or 'none'}")
        return Kernel(self, name, self.library.emulator_kernel(self.names.index(name)).contents)


class Kernel:
    """One kernel of a module.

    Attributes:
        parameters: Its parameters, from the C++ declaration.
        maximum_threads: Of a block.
        shared_memory_limit: How many bytes of dynamic shared memory a launch may ask for.
    """

    def __init__(self, module: Module, name: str, record: engine.KernelRecord) -> None:
        self.module = module
        self.name = name
        self.parameters = tuple(Parameter.from_record(record.parameters[i]) for i in range(record.parameter_count))
        self.maximum_threads: int = record.maximum_threads or MOST_THREADS
        self.shared_memory_limit = DEFAULT_SHARED_MEMORY
        self._record = record

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_memory: int = 0,
        *,
        stream: Stream | None = None,
        order: int = FORWARD,
        time_limit: float = DEFAULT_TIME_LIMIT,
    ) -> None:
        """Run the kernel, or queue it.

        Args:
            grid: Blocks along x, y, z; missing ones are 1.
            block: Threads along x, y, z; missing ones are 1.
            arguments: Device arrays, NumPy scalars, ``None`` for a null pointer, ctypes structures.
            shared_memory: Dynamic shared memory in bytes.
            stream: Where to queue the launch; without one it runs now.
            order: In which order threads take turns.
            time_limit: In seconds of processor time.

        Raises:
            LaunchError: If CUDA would refuse the launch, or an argument does not fit its parameter.
            KernelError: If something was found while it ran. With a stream, when the stream runs.
            StreamError: If queued work uses the same memory and nothing orders the two.
        """
        self.check_shape(grid, block, shared_memory)
        values = marshal(self.name, self.parameters, arguments)
        usage = memory_usage(self.parameters, arguments)
        shape = _three(grid), _three(block)

        def action() -> None:
            engine.run(
                self.name,
                self._record,
                self.module.library_path,
                *shape,
                shared_memory,
                values,
                order=order,
                checking=self.module.mode is Mode.CHECK,
                time_limit=time_limit,
            )
            kept_alive.clear()

        kept_alive = list(arguments)
        if stream is None:
            host_access(f"kernel {self.name}", usage)
            action()
        else:
            stream.enqueue(f"kernel {self.name}", action, usage)

    def check_shape(self, grid: Sequence[int], block: Sequence[int], shared_memory: int) -> None:
        """Refuse what ``cuLaunchKernel`` refuses."""
        for what, sizes, limits in (("grid", grid, MOST_BLOCKS_ALONG), ("block", block, MOST_THREADS_ALONG)):
            if not 1 <= len(sizes) <= 3:
                raise LaunchError(f"{self.name}: a {what} has one to three sizes, got {tuple(sizes)}")
            for axis, size, limit in zip("xyz", sizes, limits, strict=False):
                if not 1 <= size <= limit:
                    raise LaunchError(f"{self.name}: {what} size {axis} must be 1 to {limit:,}, got {size}")
        x, y, z = _three(block)
        if x * y * z > self.maximum_threads:
            bounds = "its launch bounds allow" if self._record.maximum_threads else "the device allows"
            raise LaunchError(f"{self.name}: {x * y * z} threads in a block, {bounds} {self.maximum_threads}")
        if not 0 <= shared_memory <= self.shared_memory_limit:
            raise LaunchError(
                f"{self.name}: {shared_memory} bytes of dynamic shared memory, the limit is {self.shared_memory_limit}"
            )

    def allow_shared_memory(self, nbytes: int) -> None:
        """Raise the limit of dynamic shared memory, as ``cuFuncSetAttribute`` does.

        Raises:
            LaunchError: Above what the device has.
        """
        if not 0 <= nbytes <= MOST_SHARED_MEMORY:
            raise LaunchError(f"{self.name}: {nbytes} bytes of shared memory, the device has {MOST_SHARED_MEMORY}")
        self.shared_memory_limit = nbytes


def _three(sizes: Sequence[int]) -> Index:
    x, y, z = [*map(int, sizes), 1, 1][:3]
    return x, y, z


def _build(text: str, options: tuple[str, ...], mode: Mode) -> Path:
    """Compile a translation unit into ``module.so`` of the folder that is returned."""
    headers = [toolchain.text_of_headers(Path(option[2:])) for option in options if option.startswith("-I")]
    flags = (*mode.value, *COMMON_FLAGS)

    def build(folder: Path) -> None:
        prelude = _precompiled_prelude(flags)
        (folder / "module.cpp").write_text(text, "utf-8")
        compile_flags = [*flags, *options, "-include", prelude / "prelude.h"]
        toolchain.compile_cpp([*compile_flags, "-c", "module.cpp", "-o", "module.o"], folder)
        link_flags = COVERAGE_LINK_FLAGS if mode is Mode.COVERAGE else ()
        toolchain.compile_cpp(["-shared", "module.o", "-o", "module.so", *link_flags], folder)
        (folder / "module.o").unlink()

    return toolchain.compile_once("module", [text, *flags, *options, *headers], build)


def _precompiled_prelude(flags: tuple[str, ...]) -> Path:
    """Return a folder with ``prelude.h`` and its compiled form, which g++ takes if the flags are the same."""

    def build(folder: Path) -> None:
        shutil.copyfile(toolchain.RUNTIME / "kernel" / "including.h", folder / "prelude.h")
        toolchain.compile_cpp([*flags, "-x", "c++-header", "prelude.h", "-o", "prelude.h.gch"], folder)

    return toolchain.compile_once("prelude", flags, build)
