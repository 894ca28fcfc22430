"""The emulator's modules with a hold on them: launches are noted instead of run, or the text is replaced by a mutant's.

``installed`` puts them in place of the emulator's own, before anything imports those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.emulator import module, source
from tests.emulator.errors import CompileError
from tests.emulator.module import DEFAULT_SHARED_MEMORY, MOST_THREADS, Kernel, Mode, Module

#: Seconds of processor time after which a mutant's launch counts as one that never ends: the tests' own take less than
#: a tenth.
TIME_LIMIT = 3.0


@dataclass(frozen=True, slots=True)
class Build:
    """What is compiled: a text with options, in one mode."""

    text: str
    options: tuple[str, ...]
    mode: Mode


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a build."""

    build: Build
    kernel: str


@dataclass
class Hold:
    """How modules behave now.

    Attributes:
        noted: launches are noted here with their threads, and nothing runs, unless it is ``None``.
        replacements: what is compiled instead of texts.
        is_refused: whether the compiler has refused a text.
    """

    noted: list[tuple[Launch, int]] | None = None
    replacements: dict[str, str] = field(default_factory=dict)
    is_refused: bool = False


class _Noted(Kernel):
    """A kernel that notes its launches."""

    def __init__(self, owner: Module, name: str, build: Build, noted: list[tuple[Launch, int]]) -> None:
        self.module = owner
        self.name = name
        self.parameters = ()
        self.maximum_threads = MOST_THREADS
        self.shared_memory_limit = DEFAULT_SHARED_MEMORY
        self._launch = Launch(build, name)
        self._noted = noted

    def launch(self, grid: Sequence[int], block: Sequence[int], *arguments: Any, **options: Any) -> None:
        threads = 1
        for size in (*grid, *block):
            threads *= size
        self._noted.append((self._launch, threads))

    def check_shape(self, grid: Sequence[int], block: Sequence[int], shared_memory: int) -> None:
        """Nothing is launched."""

    def allow_shared_memory(self, nbytes: int) -> None:
        """Nothing is launched."""


class _Limited(Kernel):
    """A kernel whose launches end soon."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.module, kernel.name, kernel._record)

    def launch(self, *arguments: Any, **options: Any) -> None:
        super().launch(*arguments, **{"time_limit": TIME_LIMIT, **options})


def installed() -> Hold:
    """Let everything that is imported from now on compile observed modules; return the hold on them."""
    hold = Hold()
    compiled: dict[Build, Module] = {}

    class Observed(Module):
        """A module that compiles when a kernel is about to run."""

        def __init__(
            self,
            text: str,
            names: Sequence[str] = (),
            options: Sequence[str] = (),
            mode: Mode = Mode.FAST,
            filename: str = "kernel.cu",
        ) -> None:
            self.names = source.kernel_names(text, names)
            self.mode = mode
            self.filename = filename
            self._given = (text, tuple(names), tuple(options))

        def kernel(self, name: str) -> Kernel:
            text, names, options = self._given
            if hold.noted is not None:
                return _Noted(self, name, Build(text, options, self.mode), hold.noted)
            build = Build(hold.replacements.get(text, text), options, self.mode)
            if build not in compiled:
                try:
                    compiled[build] = Module(build.text, names, options, self.mode, self.filename)
                except CompileError:
                    hold.is_refused = True
                    raise
            return _Limited(compiled[build].kernel(name))

    module.Module = Observed  # type: ignore[misc]
    return hold
