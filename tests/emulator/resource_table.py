"""A checked-in table of what kernels take, so that a rise is seen when it happens.

The table is text, one line a kernel and architecture, tabs between the columns. Its first line names NVRTC's version:
another version allocates registers differently, and then the table must be made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.emulator import nvrtc
from tests.emulator.nvrtc import ARCHITECTURES, Resources

#: File, kernel, architecture.
Key = tuple[str, str, str]
Table = dict[Key, Resources]

_COLUMNS = ("file", "kernel", "architecture", *(field.name for field in dataclasses.fields(Resources)))


def measure(files: Mapping[Path, Sequence[str]], architectures: Sequence[str] = ARCHITECTURES) -> Table:
    """Compile every file, given with its name expressions, for every architecture.

    Raises:
        CompileError: If one does not compile.
    """
    return {
        (path.name, kernel, architecture): resources
        for path, names in files.items()
        for architecture in architectures
        for kernel, resources in sorted(nvrtc.compile_file(path, architecture, names).resources.items())
    }


def write(path: Path, table: Table) -> None:
    """Write a table that was measured with the installed NVRTC."""
    rows = ["\t".join([*key, *map(str, dataclasses.astuple(resources))]) for key, resources in sorted(table.items())]
    path.write_text("\n".join([f"NVRTC {_version()}", "\t".join(_COLUMNS), *rows, ""]), "utf-8")


def read(path: Path) -> tuple[str, Table]:
    """Return the version of NVRTC a table was made with, and the table."""
    version, _, *rows = path.read_text("utf-8").splitlines()
    table: Table = {}
    for row in rows:
        file, kernel, architecture, *numbers = row.split("\t")
        table[file, kernel, architecture] = Resources(*map(int, numbers))
    return version.removeprefix("NVRTC "), table


def problems(recorded: Table, measured: Table) -> list[str]:
    """Return what is worse than recorded, one sentence each: spills, any rise, and lines missing on either side."""
    found = [f"{_name(key)} is not in the table" for key in measured.keys() - recorded.keys()]
    found += [
        f"{_name(key)} is in the table, but no such kernel was compiled" for key in recorded.keys() - measured.keys()
    ]
    for key in measured.keys() & recorded.keys():
        if measured[key].spill_stores or measured[key].spill_loads:
            found.append(f"{_name(key)} spills {measured[key].spill_stores} bytes of registers")
        for field in dataclasses.fields(Resources):
            before, now = getattr(recorded[key], field.name), getattr(measured[key], field.name)
            if now > before:
                found.append(f"{_name(key)}: {field.name} rose from {before} to {now}")
    return sorted(found)


def _version() -> str:
    return "{}.{}".format(*nvrtc.version())


def _name(key: Key) -> str:
    file, kernel, architecture = key
    return f"{file}: {kernel} for {architecture}"
