"""From the text of a ``.cu`` file to a C++ translation unit that g++ compiles and the launcher understands."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
#: ``extern __shared__ float tile[];``, with an alignment or without.
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?([\w:\s<>]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
_NAMED_KERNEL = re.compile(
    rf'extern\s+"C"\s+{_BOUNDS}(?:__global__\s+)?{_BOUNDS}(?:__global__\s+)?void\s+{_BOUNDS}(\w+)\s*\('
)
#: The first argument of the launch bounds that stand before the name of a function.
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\(([^,()]+)[^)]*\)\s*(?:__global__\s+)?(?:void\s+)?(\w+)\s*\(")


def kernel_names(text: str, expressions: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names a module offers: kernels declared ``extern "C"`` with one ``void``, then ``expressions``."""
    return tuple(dict.fromkeys([*_NAMED_KERNEL.findall(_without_comments(text)), *expressions]))


def translation_unit(text: str, names: Iterable[str], filename: str) -> str:
    """Return a C++ source in which the lines of ``text`` keep their numbers under the name ``filename``.

    Dynamic shared memory is the only thing that is rewritten: ``extern __shared__`` has no counterpart in C++.
    """
    body = _DYNAMIC_SHARED.sub(r"\1* const \2 = (\1*)emulator_dynamic_shared_memory();", text)
    bounds = {name: threads.strip() for threads, name in _LAUNCH_BOUNDS.findall(_without_comments(text))}
    entries = "".join(
        f'    emulator::Described<&{name}>::description("{name}", {_threads(name, bounds)}),\n' for name in names
    )
    return (
        f'#line 1 "{filename}"\n{body}\n#line 1 "exported_kernels"\n'
        'extern "C" __attribute__((visibility("default")))\n'
        "const emulator::KernelDescription* emulator_kernel(unsigned index) {\n"
        f"  static const emulator::KernelDescription kernels[] = {{\n{entries}    emulator::KernelDescription{{}}}};\n"
        "  return &kernels[index];\n}\n"
    )


def _threads(name: str, bounds: dict[str, str]) -> str:
    """Return the launch bounds of a kernel as C++; 0 where a template's may depend on its arguments."""
    threads = bounds.get(name.split("<")[0], "0")
    return threads if "<" not in name or threads.isdecimal() else "0"


def _without_comments(text: str) -> str:
    """Blank out comments; strings stay, since ``extern "C"`` is one."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    return _COMMENT_OR_STRING.sub(blank, text)
