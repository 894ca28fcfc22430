"""What CuPy offers, recorded from the real one, so that host code is compared with it where it is not installed.

``cupy_names.txt`` has a name in each line: those of CuPy and its modules for CUDA, of their classes' members, and of
the compiled wrapper of cuBLAS; with its parameters where CuPy says which.

Use: ``python -m tests.emulator.cupy_signatures`` writes the file anew, where CuPy is installed. No device is needed.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulator.cupy_names import Mention, calls_in, mentioned_names, wrapper_of

RECORD = Path(__file__).with_name("cupy_names.txt")
#: CuPy's modules whose names are recorded, and whether with parameters.
MODULES = {
    "cupy": False,
    "cupy.cuda": True,
    **{
        f"cupy.cuda.{name}": True
        for name in ("compiler", "device", "driver", "function", "memory", "pinned_memory", "runtime", "stream")
    },
}
#: Of CuPy itself, what is recorded with parameters and members.
CLASSES = ("RawKernel", "RawModule", "ndarray")
CUBLAS = "cupy.cuda.cublas"

#: How compiled functions begin their documentation: with their own declaration.
_DECLARATION = re.compile(r"\s*(?:\w+\.)*(?P<name>\w+)\((?P<parameters>[^\n]*?)\)(?: -> [\w.]+)?\s*(?:\n|$)")
_WRAPPED = re.compile(rb"\0(\w+)\(((?:intptr_t handle[^\0]*)?)\)(?: -> \w+)?(?=\0|\n)")
_CONSTANT = re.compile(rb"\0(CUBLAS_\w+)(?=\0)")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call may pass.

    Attributes:
        positional: parameters that may be given by their place, in order.
        by_name: those that may be given by name.
        required: those that must be given.
        takes_all: whether any other name is taken too.
    """

    positional: tuple[str, ...]
    by_name: frozenset[str]
    required: frozenset[str]
    takes_all: bool

    def refuses(self, count: int, names: frozenset[str]) -> str | None:
        """Why a call with ``count`` arguments by place and those ``names`` cannot be made; None if it can."""
        if count > len(self.positional):
            return f"takes {len(self.positional)} arguments by place, got {count}"
        unknown = set() if self.takes_all else names - self.by_name
        if unknown:
            return f"has no parameter {', '.join(sorted(unknown))}"
        missing = self.required - names - set(self.positional[:count])
        return f"needs {', '.join(sorted(missing))}" if missing else None


def parsed(text: str) -> Signature:
    """The parameters of a declaration, in Python or in Cython: ``self, int value, size_t size, *, stream=None``."""
    positional: list[str] = []
    by_name: set[str] = set()
    required: set[str] = set()
    is_positional, takes_all = True, False
    for part in filter(None, (part.strip().replace("\\", "") for part in re.split(r",(?![^(\[]*[)\]])", text))):
        if part.startswith("**"):
            takes_all = True
        elif part == "/":
            by_name.clear()
        elif part.startswith("*"):
            is_positional = False
        else:
            head, has_default, _ = part.partition("=")
            name = head.split(":")[0].split()[-1]
            if name == "self":
                continue
            if is_positional:
                positional.append(name)
            by_name.add(name)
            if not has_default:
                required.add(name)
    return Signature(tuple(positional), frozenset(by_name), frozenset(required), takes_all)


@functools.cache
def recorded() -> Mapping[str, Signature | None]:
    """Every recorded name; None where CuPy does not say what it takes."""
    found: dict[str, Signature | None] = {}
    for line in RECORD.read_text("utf-8").splitlines():
        name, opened, rest = line.partition("(")
        if not line.startswith("#"):
            found[name] = parsed(rest.removesuffix(")")) if opened else None
    return found


def unrecorded_names(source: str) -> list[Mention]:
    """What a source mentions that the recorded CuPy does not have. Members of members are left out."""
    names = recorded()
    return [mention for mention in mentioned_names(source) if _missing(mention.name, names)]


def _missing(name: str, names: Mapping[str, object]) -> bool:
    if name in MODULES or name == CUBLAS or name in names:
        return False
    owner, _, _ = name.rpartition(".")
    return owner in MODULES or owner == CUBLAS or owner not in names or any(n.startswith(f"{owner}.") for n in names)


def unfit_calls(source: str) -> list[str]:
    """Calls of CuPy's functions and classes whose arguments the recorded one would not take, with their lines."""
    problems = []
    for name, call in calls_in(source):
        signature = recorded().get(name)
        if (
            signature is None
            or any(isinstance(a, ast.Starred) for a in call.args)
            or any(not k.arg for k in call.keywords)
        ):
            continue
        reason = signature.refuses(len(call.args), frozenset(k.arg for k in call.keywords if k.arg))
        if reason is not None:
            problems.append(f"line {call.lineno}: {name} {reason}")
    return problems


# ---------------------------------------------------------------------- recording


def lines() -> Iterator[str]:
    """The names of the installed CuPy, with parameters where it says which."""
    for path, with_parameters in MODULES.items():
        parts = path.split(".")[1:]
        module = functools.reduce(getattr, parts, importlib.import_module("cupy"))  # some are another package's
        for name in sorted(vars(module)):
            if (name.startswith("_") and name != "__version__") or inspect.ismodule(vars(module)[name]):
                continue
            thing, full = vars(module)[name], f"{path}.{name}"
            if not with_parameters and name not in CLASSES:
                yield full
                continue
            yield full + _parameters(thing, name)
            if inspect.isclass(thing):
                members = sorted(member for member in dir(thing) if not member.startswith("_") or member == "__call__")
                yield from (f"{full}.{member}{_parameters(getattr(thing, member), member)}" for member in members)
    content = wrapper_of("cublas").read_bytes()
    functions = {match[1].decode(): match[2].decode() for match in _WRAPPED.finditer(content)}
    yield from (f"{CUBLAS}.{name}({parameters})" for name, parameters in sorted(functions.items()))
    yield from (f"{CUBLAS}.{name}" for name in sorted({match[1].decode() for match in _CONSTANT.finditer(content)}))


def _parameters(thing: Any, name: str) -> str:
    """``(…)``, or nothing where a thing is not called or does not say how."""
    if not callable(thing):
        return ""
    texts = [thing.__doc__, thing.__init__.__doc__] if inspect.isclass(thing) else [thing.__doc__]
    for text in texts:
        match = _DECLARATION.match(text or "")
        if match is not None and match["name"] in (name, "__init__"):
            return f"({match['parameters']})"
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return shown if "\n" not in shown and " at 0x" not in shown else ""


def main() -> None:
    """Write what is recorded anew."""
    version = importlib.import_module("cupy").__version__
    head = f"# CuPy {version}, written by python -m tests.emulator.cupy_signatures"
    RECORD.write_text("\n".join([head, *sorted(set(lines()))]) + "\n", "utf-8")


if __name__ == "__main__":
    main()
