"""The C++ compiler, the CUDA headers, and a cache of what was compiled.

Everything compiled lies in one folder, under names that are hashes of all that went into it: sources, headers, flags
and the compiler's version. It can be deleted at any time; what was not used for two weeks
goes by itself. Processes may fill it at once: each compiles into a temporary
folder and moves the result into place.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.emulator.errors import CompileError, MissingToolError

CACHE_VARIABLE = "MILA_EMULATOR_CACHE"
KEPT_SECONDS = 14 * 24 * 3600.0
RUNTIME = Path(__file__).resolve().parent / "runtime"
#: Where the CUDA wheels put their files, below a folder of the Python path.
WHEEL_FOLDER = Path("nvidia") / "cu13"
#: A header of each of the wheels.
NEEDED_HEADERS = ("cuda_bf16.h", "crt/host_defines.h", "nv/target")
HEADER_SUFFIXES = {".h", ".hpp", ".cuh", ".cu", ".inl"}


def missing_tools() -> str | None:
    """Return why kernels cannot be emulated on this machine, or None if they can."""
    try:
        compiler_version()
        cuda_include()
    except MissingToolError as error:
        return str(error)
    return None


@functools.cache
def compiler_version() -> str:
    """Return the first line of ``g++ --version``.

    Raises:
        MissingToolError: Without g++, or on a processor that the fibers do not support.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise MissingToolError(
            f"the emulator runs on Linux and x86-64, this is {platform.system()} {platform.machine()}"
        )
    if shutil.which("g++") is None or shutil.which("addr2line") is None:
        raise MissingToolError("g++ and addr2line are needed to emulate kernels (Debian: apt-get install g++)")
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


@functools.cache
def cuda_include() -> Path:
    """Return the folder of the CUDA headers: those of the wheels, so that every machine compiles the same text.

    Raises:
        MissingToolError: If there is none with all headers.
    """
    for folder in (wheels / "include" for wheels in wheel_folders()):
        if all((folder / header).exists() for header in NEEDED_HEADERS):
            return folder
    raise MissingToolError("CUDA's headers are not installed (pip install '.[cuda-test]')")


def wheel_folders() -> list[Path]:
    """Return where CUDA wheels are installed."""
    specification = importlib.util.find_spec(WHEEL_FOLDER.parts[0])
    locations = specification.submodule_search_locations if specification else None
    return [Path(location).joinpath(*WHEEL_FOLDER.parts[1:]) for location in locations or []]


def cache_folder() -> Path:
    """Return the cache: ``$MILA_EMULATOR_CACHE``, else a folder of the user's cache, else a temporary one."""
    named = os.environ.get(CACHE_VARIABLE)
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else user / "mila" / "cuda_emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        if named:
            raise
        folder = Path(tempfile.gettempdir()) / f"mila_cuda_emulator_{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def compile_once(name: str, inputs: Iterable[str], build: Callable[[Path], None]) -> Path:
    """Return the folder of a build, which ``build`` fills if nobody has done it yet.

    Args:
        name: A short word that the folder's name begins with.
        inputs: All that the result depends on, beside the compiler and the emulator's own sources.
        build: Called with an empty folder to leave the result in.
    """
    digest = hashlib.sha256("\0".join([compiler_version(), str(cuda_include()), runtime_text(), *inputs]).encode())
    target = cache_folder() / f"{name}-{digest.hexdigest()[:24]}"
    if target.exists():
        os.utime(target)
        return target
    _forget_unused()
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f"{name}-building-") as temporary:
        result = Path(temporary) / "result"
        result.mkdir()
        build(result)
        try:
            result.rename(target)
        except OSError:  # somebody else was faster
            if not target.exists():
                raise
    return target


def _forget_unused() -> None:
    """Delete what nobody has used for a while: most of it belongs to sources that have changed since."""
    oldest = time.time() - KEPT_SECONDS
    for folder in cache_folder().iterdir():
        with contextlib.suppress(FileNotFoundError):  # somebody else deletes too
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def compile_cpp(arguments: Sequence[str | Path], folder: Path) -> None:
    """Run g++ with the runtime's and CUDA's headers.

    Raises:
        CompileError: With what g++ said.
    """
    command = ["g++", "-std=c++17", "-fPIC", f"-I{RUNTIME}", f"-I{cuda_include()}", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr[:6000])


def compile_all(sources: Sequence[Path], flags: Sequence[str], folder: Path) -> list[Path]:
    """Compile several files, two at a time, and return the object files."""
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, target: Path) -> None:
        compile_cpp([*flags, "-c", source, "-o", target], folder)

    with ThreadPoolExecutor(max_workers=2) as executor:
        list(executor.map(compile_one, sources, objects))
    return objects


@functools.cache
def runtime_text() -> str:
    """Return all of the emulator's C++, which every build depends on."""
    return text_of_headers(RUNTIME, {".h", ".cpp"})


def text_of_headers(folder: Path, suffixes: Iterable[str] = HEADER_SUFFIXES) -> str:
    """Return the files below a folder that a source may include, one after the other."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in suffixes)
    return "\0".join(f"{path.relative_to(folder)}\0{path.read_text('utf-8')}" for path in paths)
