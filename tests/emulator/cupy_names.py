"""Every name of CuPy that a source mentions, and those that CuPy does not have.

The stand-in cannot prove that CuPy has what it stands in for. CuPy imports without a device, so that this can.

Use: ``python -m tests.emulator.cupy_names FILE ...`` prints what is missing.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "cupy"
WRAPPERS = "cupy_backends.cuda.libs"


@dataclass(frozen=True, slots=True, order=True)
class Mention:
    """A dotted name, and the line it stands on; whether it is imported as a module, which not every name can be."""

    name: str
    line: int
    as_module: bool = False


def mentioned_names(source: str) -> list[Mention]:
    """Return the names below ``cupy`` that are imported or read, the longest chain of attributes each.

    A name is followed through ``import cupy as cp`` and ``from cupy import cuda``, not through assignments: what is
    stored in a variable first is not seen.
    """
    tree = ast.parse(source)
    aliases, found = _imports(tree)
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            chain = _chain(node)
            if chain and chain[0] in aliases:
                found.add(Mention(".".join([aliases[chain[0]], *chain[1:]]), node.lineno))
    return sorted(found)


def calls_in(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of names below ``cupy``, with the full name of what is called."""
    tree = ast.parse(source)
    aliases, _ = _imports(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        chain = _chain(node.func) if isinstance(node.func, ast.Attribute) else None
        if isinstance(node.func, ast.Name):
            chain = [node.func.id]
        if chain and chain[0] in aliases:
            yield ".".join([aliases[chain[0]], *chain[1:]]), node


def _imports(tree: ast.Module) -> tuple[dict[str, str], set[Mention]]:
    """What the names that imports bind stand for, and what is imported."""
    aliases: dict[str, str] = {}
    found: set[Mention] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for alias, name, bound in _imported(node):
            aliases[alias] = bound
            found.add(Mention(name, node.lineno, isinstance(node, ast.Import)))
    return aliases, found


def unknown_names(source: str) -> list[Mention]:
    """Return what the installed CuPy does not have. Attributes of instances are left out: only an object has them."""
    return [mention for mention in mentioned_names(source) if not _exists(mention)]


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str, str]]:
    """Yield the name that an import binds, the full name that it imports, and what the bound name stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == ROOT:
                yield alias.asname or ROOT, alias.name, alias.name if alias.asname else ROOT
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == ROOT:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield alias.asname or alias.name, name, name


def _chain(node: ast.Attribute) -> list[str] | None:
    names: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    return [value.id, *reversed(names)] if isinstance(value, ast.Name) else None


def _exists(mention: Mention) -> bool:
    thing: object = importlib.import_module(ROOT)
    parts = mention.name.split(".")[1:]
    for position, part in enumerate(parts):
        try:
            if not mention.as_module and hasattr(thing, part):
                thing = getattr(thing, part)
                continue
            thing = importlib.import_module(".".join([ROOT, *parts[: position + 1]]))
        except ModuleNotFoundError:
            return False
        except ImportError:  # the module is there, the library that it needs is not
            return _is_in_wrapper(part, parts[position + 1 :])
    return True


def wrapper_of(library: str) -> Path:
    """The compiled module around a CUDA library, which cannot be imported where the library is not installed.

    Raises:
        FileNotFoundError: CuPy has none.
    """
    specification = importlib.util.find_spec(f"{WRAPPERS}.{library}")
    if specification is None or specification.origin is None:
        raise FileNotFoundError(f"{WRAPPERS}.{library}")
    return Path(specification.origin)


def _is_in_wrapper(library: str, names: list[str]) -> bool:
    """Look for names in the compiled module around a CUDA library that is not installed."""
    try:
        content = wrapper_of(library).read_bytes()
    except FileNotFoundError:
        return False
    # A constant is a string of its own; a function is part of a symbol's name, behind its number.
    return all(re.search(rb"(\0|_\d+)%s\0" % name.encode(), content) for name in names)


def main() -> int:
    """Check the files that the command line names."""
    missing = 0
    for argument in sys.argv[1:]:
        for mention in unknown_names(Path(argument).read_text("utf-8")):
            print(f"{argument}:{mention.line}: CuPy has no {mention.name}")
            missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
