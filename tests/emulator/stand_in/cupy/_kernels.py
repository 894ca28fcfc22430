"""``RawModule`` and ``RawKernel``: compiled by g++, launched under the emulator, arguments converted as CuPy does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arguments import Parameter
from tests.emulator.errors import CompileError as EmulatorCompileError
from tests.emulator.errors import LaunchError
from tests.emulator.module import DEFAULT_SHARED_MEMORY, Kernel, Mode, Module
from tests.emulator.stand_in.settings import chosen_run

from ._array import ndarray
from .cuda.compiler import CompileException
from .cuda.driver import CUDADriverError
from .cuda.memory import MemoryPointer
from .cuda.stream import Stream, current

_KEPT_OPTIONS = ("-D", "-U", "-I")
#: What a kernel may ask for at first: a driver takes off what the kernel declares itself, which is not known here.
_UNASKED_SHARED_MEMORY = DEFAULT_SHARED_MEMORY - 1024


@dataclass(frozen=True, slots=True)
class _DeviceMemory:
    """An argument as the emulator wants it."""

    address: int
    nbytes: int
    element_type: np.dtype[Any] | None
    owner: Any


class RawModule:
    """CUDA C++ source; it is compiled when a function is first launched, or by ``compile``."""

    def __init__(
        self,
        *,
        code: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        name_expressions: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(options, tuple):
            raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
        if name_expressions and not any("-std=" in option for option in options):
            raise ValueError("need to specify C++ standard for compiling template code")
        self._code = code
        self._options = tuple(option for option in options if option.startswith(_KEPT_OPTIONS))
        self._names = tuple(name_expressions or ())
        self._modules: dict[Mode, Module] = {}

    def compile(self, log_stream: Any = None) -> None:
        """Compile the way that is chosen now."""
        self._module()

    def get_function(self, name: str) -> Function:
        """Return a kernel by its name or name expression."""
        if name not in self._module().names:
            raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}")
        return Function(self, name)

    def _module(self) -> Module:
        mode = chosen_run().mode
        if mode not in self._modules:
            try:
                self._modules[mode] = Module(self._code, self._names, self._options, mode)
            except EmulatorCompileError as error:
                raise CompileException(str(error)) from error
        return self._modules[mode]


class Function:
    """A kernel that is launched by calling it."""

    def __init__(self, module: RawModule, name: str) -> None:
        self.name = name
        self.max_dynamic_shared_size_bytes = _UNASKED_SHARED_MEMORY
        self._module = module

    @property
    def attributes(self) -> dict[str, int]:
        """What is known of the kernel without a device."""
        return {
            "max_dynamic_shared_size_bytes": self.max_dynamic_shared_size_bytes,
            "max_threads_per_block": self._kernel().maximum_threads,
        }

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Queue a launch. What CUDA refuses raises `CUDADriverError`, what it would misread a `LaunchError`."""
        kernel = self._kernel()
        try:
            kernel.allow_shared_memory(self.max_dynamic_shared_size_bytes)
            kernel.check_shape(grid, block, shared_mem)
        except LaunchError as error:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: invalid argument: {error}") from error
        parameters = [*kernel.parameters, *[None] * len(args)]
        arguments = [_converted(argument, parameter) for argument, parameter in zip(args, parameters, strict=False)]
        queue = current(stream).queue
        kernel.launch(grid, block, arguments, shared_mem, stream=queue, order=chosen_run().order)

    def _kernel(self) -> Kernel:
        return self._module._module().kernel(self.name)


class RawKernel(Function):
    """One kernel with a source of its own."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        super().__init__(RawModule(code=code, options=options, backend=backend), name)


def _converted(argument: Any, parameter: Parameter | None) -> Any:
    if isinstance(argument, ndarray):
        begin, end = argument.memory_range
        return _DeviceMemory(argument.data.ptr, end - begin, argument.dtype, argument)
    if isinstance(argument, MemoryPointer):
        return _DeviceMemory(argument.ptr, argument.mem.size - (argument.ptr - argument.mem.ptr), None, argument)
    if isinstance(argument, np.ndarray) and argument.size == 1:
        return argument.reshape(-1)[0]  # by value: how CuPy takes structures
    if isinstance(argument, bool):
        return np.bool_(argument)
    if isinstance(argument, int):
        argument = np.int64(argument)
    if isinstance(argument, float):
        return np.float64(argument)
    if parameter is not None and parameter.code == "p" and isinstance(argument, np.int64 | np.uint64):
        return _DeviceMemory(int(argument), 0, None, None)  # an address, which has the size of a pointer
    return argument
