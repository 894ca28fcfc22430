"""Where in a kernel file a change is felt: the texts that contain it, and the kernels that can reach it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mila.devices import kernel_files
from mila.devices.kernel_files import source_text, sources
from tests.cuda.mutation.operators import code_of

_KERNEL = re.compile(r"\b__global__\s[^(;{]*?(\w+)\s*\(")
_FUNCTION = re.compile(r"(\w+)\s*\([^;]*\{", re.DOTALL)
_NAMED = re.compile(r"\b(?:struct|enum|using)\s+(?:alignas\([^)]*\)\s*)?(\w+)")
_CONSTANT = re.compile(r"\bconstexpr\s+[\w ]+?\s(\w+)\s*=")


@dataclass(frozen=True, slots=True)
class _Part:
    """A declaration of a text: where it ends, what it declares, which words it has."""

    stop: int
    declares: frozenset[str]
    words: frozenset[str]
    kernel: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """Where a mutant lives.

    Attributes:
        source: the stem of the ``.cu`` file.
        original: the text that is compiled for it.
        changed: the same with the change.
        kernels: those that use, directly or not, the declaration in which the two differ.
    """

    source: str
    original: str
    changed: str
    kernels: frozenset[str]


def target_of(file: str, changed: str, choice: int) -> Target:
    """The target of a changed file. Of several sources that include and use what has changed, ``choice`` takes one."""
    targets = [_target(source, file, changed) for source in sources() if f'"{file}"\n' in source_text(source)]
    return (reached := [target for target in targets if target.kernels] or targets)[choice % len(reached)]


def _target(source: str, file: str, changed: str) -> Target:
    text = _changed_text(source, file, changed)
    return Target(source, source_text(source), text, _kernels_reaching(source, text))


def _changed_text(source: str, file: str, changed: str) -> str:
    read = kernel_files._read

    def read_changed(name: str) -> str:
        return changed if name == file else read(name)

    try:
        kernel_files._read = read_changed
        return source_text.__wrapped__(source)
    finally:
        kernel_files._read = read


def _kernels_reaching(source: str, changed: str) -> frozenset[str]:
    parts = _parts_of(source)
    place = next(i for i, pair in enumerate(zip(source_text(source), changed, strict=False)) if pair[0] != pair[1])
    reached = {next(index for index, part in enumerate(parts) if place < part.stop)}
    declared = set(parts[min(reached)].declares)
    while more := {i for i, part in enumerate(parts) if i not in reached and part.words & declared}:
        reached |= more
        declared |= {name for i in more for name in parts[i].declares}
    return frozenset(part.kernel for i, part in enumerate(parts) if i in reached and part.kernel)


@functools.cache
def _parts_of(source: str) -> tuple[_Part, ...]:
    return tuple(_parts(code_of(source_text(source))))


def _parts(code: str) -> Iterator[_Part]:
    depth, start = 0, 0
    for match in re.finditer(r"[{};]", code):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            yield _part(code[start : match.end()], match.end())
            start = match.end()
    yield _part(code[start:], len(code) + 1)


def _part(code: str, stop: int) -> _Part:
    kernel, function = _KERNEL.search(code), _FUNCTION.search(code)
    declares = {*_NAMED.findall(code), *_CONSTANT.findall(code)}
    if function is not None and not _NAMED.match(code.lstrip()):
        declares.add(function[1])
    return _Part(stop, frozenset(declares), frozenset(re.findall(r"[A-Za-z_]\w*", code)), kernel and kernel[1])
