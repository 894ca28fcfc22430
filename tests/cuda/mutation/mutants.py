"""The mutants of the shipped kernels: every one of them, and a sample that stays the same while other lines change."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mila.devices.kernel_files import FOLDER
from tests.cuda.mutation.operators import OPERATORS, Edit, code_of


@dataclass(frozen=True, slots=True)
class Key:
    """What a mutant is known by: not its line's number, which changes with the lines above.

    Attributes:
        file: the source's name.
        line: the code of the line, without what surrounds it.
        change: what was done to it, in words.
        nth: which of several equal ones of the file, from 1 on.
    """

    file: str
    line: str
    change: str
    nth: int

    def __str__(self) -> str:
        return "\t".join((self.file, self.line, self.change, str(self.nth)))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel file with one change.

    Attributes:
        key: what it is known by.
        operator: the name of the operator.
        number: of the line.
        text: of the whole file.
    """

    key: Key
    operator: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.key.file}:{self.number}:{self.operator}: {self.key.change}: {self.key.line}"


def files() -> list[Path]:
    """All files of kernels and what they include."""
    return sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")])


@functools.cache
def mutants_of(path: Path) -> tuple[Mutant, ...]:
    """Every mutant of a file, in the order of operators and places."""
    text = path.read_text("utf-8")
    code, found = code_of(text), []
    seen: set[tuple[int, str]] = set()
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for operator, edits in OPERATORS.items():
        for edit in sorted(edits(code), key=lambda edit: edit.spans):
            changed, number = edit.applied(text), text.count("\n", 0, edit.spans[0][0]) + 1
            line, (before, after) = _line_of(text, edit), _code_around(text, changed, edit)
            counts[line, edit.change] += 1
            if after == before or (number, after) in seen:
                continue
            seen.add((number, after))
            key = Key(path.name, line, edit.change, counts[line, edit.change])
            found.append(Mutant(key, operator, number, changed))
    return tuple(found)


def _line_of(text: str, edit: Edit) -> str:
    start = edit.spans[0][0]
    line = text[text.rfind("\n", 0, start) + 1 : text.find("\n", start)]
    return re.sub(r"\s*//.*", "", line).strip()


def _code_around(text: str, changed: str, edit: Edit) -> tuple[str, str]:
    """The code of the lines that an edit touches, before and after it, without blanks: equal ones are one mutant."""
    start, stop = text.rfind("\n", 0, edit.spans[0][0]) + 1, text.find("\n", edit.spans[-1][1])
    before, after = text[start:stop], changed[start : stop + len(changed) - len(text)]
    return _compressed(before), _compressed(after)


def _compressed(code: str) -> str:
    return re.sub(r"//[^\n]*|\s+", "", code)


def sample(seed: int, names: Sequence[str] = ()) -> Iterator[Mutant]:
    """All mutants in an order such that those of any count are spread over files and operators.

    A file has a share that is in proportion to its mutants, and in each file the operators take turns. Who comes first
    is a hash of seed and key: a change of one line moves the mutants of others little.

    Args:
        seed: of the order.
        names: of the files to take; none are all.
    """
    queues = {path.name: _turns(seed, mutants_of(path)) for path in files() if not names or path.name in names}
    places = [
        ((index + share(seed, name)) / len(queue), name, mutant)
        for name, queue in queues.items()
        for index, mutant in enumerate(queue)
    ]
    for _, _, mutant in sorted(places, key=lambda place: place[:2]):
        yield mutant


def _turns(seed: int, mutants: Sequence[Mutant]) -> list[Mutant]:
    ranked: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(mutants, key=lambda mutant: share(seed, str(mutant.key))):
        ranked[mutant.operator].append(mutant)
    turns = [
        (index, share(seed, f"{mutant.key.file} {operator}"), mutant)
        for operator, queue in ranked.items()
        for index, mutant in enumerate(queue)
    ]
    return [mutant for _, _, mutant in sorted(turns, key=lambda turn: turn[:2])]


def share(seed: int, name: str) -> float:
    """Return a number from 0 to 1 that depends on the seed and the name alone."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
