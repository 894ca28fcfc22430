"""Imports point one way, files and functions keep to a readable size."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "mila").rglob("*.py"))
ALL_SOURCES = [path for folder in ("mila", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]

# From the top down: a package may import itself and all packages on floors below its own.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),  # python -m mila
    ("cli",),
    ("",),  # mila/__init__.py: the public names
    ("planning",),
    ("training",),
    ("models",),
    ("generation", "network_language"),
    ("components",),
    ("quantization",),
    ("core",),
    ("memory", "serialization"),
    ("devices",),
    ("kernels",),
    ("errors",),
)
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}

BASE_DEPENDENCIES = {"numpy", "ml_dtypes", "pydantic", "safetensors", "mila"}
# Where more than the base dependencies may be imported: a module, or a package with all it holds.
EXTRA_DEPENDENCIES = {
    "mila.cli": {"typer", "rich", "matplotlib"},
    "mila.generation.text": {"tokenizers", "jinja2"},
    "mila.models.gguf_import": {"gguf", "tokenizers"},
    "mila.devices.cuda": {"cupy", "cupyx", "cupy_backends"},
    "mila.planning.hub": {"huggingface_hub"},
}
LAZY_ONLY = {
    "typer",
    "rich",
    "torch",
    "matplotlib",
    "cupy",
    "tokenizers",
    "jinja2",
    "gguf",
    "huggingface_hub",
}  # must not come with `import mila`

MAXIMUM_FILE_LINES = 400
MAXIMUM_FUNCTION_LINES = 60  # without the docstring


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """Return the part of a module's name that decides its floor: ``mila.core.graph`` is in ``core``."""
    return module.split(".")[1] if "." in module else ""


def imported_modules(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and name of every module that ``source`` imports, in functions and for type checking too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name) for name in sources_of(node, module, is_package))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def sources_of(node: ast.ImportFrom, module: str, is_package: bool) -> list[str]:
    """Return the modules that a ``from … import …`` names, relative ones made absolute."""
    path = node.module.split(".") if node.module else []
    if node.level:
        here = module.split(".")
        path = here[: len(here) - node.level + is_package] + path
    if path == ["mila"]:  # `from mila import core` takes the package, `from mila import Linear` the public names
        return [f"mila.{alias.name}" if alias.name in FLOOR_OF else "mila" for alias in node.names]
    return [".".join(path)]


def import_violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return a line for every import that ``module`` must not make."""
    extra = {
        name for place, names in EXTRA_DEPENDENCIES.items() if f"{module}.".startswith(f"{place}.") for name in names
    }
    found = []
    for line, imported in imported_modules(source, module, is_package):
        top = imported.split(".")[0]
        own, other = package_of(module), package_of(imported)
        if top in sys.stdlib_module_names or top in extra:
            continue
        if top not in BASE_DEPENDENCIES:
            found.append(f"{module}:{line}: {imported} is not among the dependencies that this module may import")
        elif top == "mila" and other not in FLOOR_OF:
            found.append(f"{module}:{line}: {imported} is on no floor")
        elif top == "mila" and own != other and FLOOR_OF[own] >= FLOOR_OF[other]:
            found.append(f"{module}:{line}: {own or 'mila'} is not above {other or 'mila'}, but imports {imported}")
    return found


def function_lengths(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, first line and length of every function: signature and body, without the docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            yield node.name, node.lineno, lines


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that finds mila where this one does, and not in the working folder."""
    return subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )


def test_every_package_is_on_a_floor() -> None:
    assert {package_of(module_name(path)) for path in SOURCES} <= set(FLOOR_OF)


def test_imports_point_down() -> None:
    violations = [
        violation
        for path in SOURCES
        for violation in import_violations(path.read_text("utf-8"), module_name(path), path.name == "__init__.py")
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mila.kernels.cpu.softmax", "from mila.core.graph import Graph"),
        ("mila.core.graph", "import mila.components.linear"),
        ("mila.core.graph", "from mila import components"),
        ("mila.core.graph", "from mila import Linear"),
        ("mila.core.graph", "from ..components import linear"),
        ("mila.core.graph", "def late() -> None:\n    from mila.models import gpt2"),
        ("mila.core.graph", "if TYPE_CHECKING:\n    from mila.training.trainer import Trainer"),
        ("mila.core.graph", "importlib.import_module('mila.models.gpt2')"),
        ("mila.memory.plan", "from mila.serialization import safetensors"),
        ("mila.generation.prefill", "import mila.network_language"),
        ("mila.errors", "import mila.kernels"),
        ("mila.core.graph", "import mila.colour"),
        ("mila", "from mila.cli.main import main"),
        ("mila.planning.report", "import rich"),
        ("mila.training.trainer", "from typer import echo"),
        ("mila.devices.device_id", "import cupy as cp"),
        ("mila.devices.cuda_graphs", "import cupy"),
        ("mila.cli.plan", "import cupy"),
        ("mila.components.linear", "import torch"),
        ("mila.components.linear", "from scipy.special import erf"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(import_violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "mila.core.graph",
            "from mila.memory.plan import Plan\nfrom mila.errors import ShapeError\nimport numpy as np",
        ),
        ("mila.core.graph", "from .schedule import Schedule\nfrom ..memory import plan\nfrom mila import errors"),
        ("mila.cli.plan", "import rich.table\nimport typer\nfrom mila import Linear"),
        ("mila.devices.cuda", "import cupy"),
        ("mila", "from mila.planning.search import search\nfrom mila.errors import MilaError"),
        ("mila.serialization.files", "import os, ml_dtypes, safetensors.numpy\nfrom pydantic import BaseModel"),
    ],
)
def test_a_right_import_is_accepted(module: str, source: str) -> None:
    assert import_violations(source, module) == []


def test_relative_imports_of_a_package_start_at_the_package() -> None:
    source = "from .graph import Graph\nfrom ..components import linear"
    assert list(imported_modules(source, "mila.core", is_package=True)) == [
        (1, "mila.core.graph"),
        (2, "mila.components"),
    ]


def test_import_mila_brings_no_optional_package() -> None:
    program = (
        f"import mila, sys; [getattr(mila, name) for name in mila.__all__]; print(*{LAZY_ONLY} & set(sys.modules))"
    )
    completed = run_python(program)
    assert (completed.returncode, completed.stdout.strip()) == (0, ""), completed.stderr


def test_importing_mila_loads_nothing_yet() -> None:
    """The command line sets what NumPy's libraries read when they are loaded."""
    completed = run_python("import mila.cli.main, sys; print(*{'numpy', 'pydantic', 'typer'} & set(sys.modules))")
    assert (completed.returncode, completed.stdout.strip()) == (0, ""), completed.stderr


def test_public_names() -> None:
    import mila

    assert {*mila.__all__} <= {*dir(mila)}
    assert all(getattr(mila, name).__name__ == name for name in mila.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Tensor'"):
        mila.Tensor  # noqa: B018


def test_files_are_short() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in ALL_SOURCES}
    long = {path: lines for path, lines in long.items() if lines > MAXIMUM_FILE_LINES}
    assert not long, f"files of more than {MAXIMUM_FILE_LINES} lines; split them by family: {long}"


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{line} {name}": lines
        for path in SOURCES
        for name, line, lines in function_lengths(path.read_text("utf-8"))
        if lines > MAXIMUM_FUNCTION_LINES
    }
    assert not long, f"functions of more than {MAXIMUM_FUNCTION_LINES} lines beside their docstring: {long}"


def test_the_length_of_a_function_leaves_out_its_docstring() -> None:
    source = 'def one(\n    x: int,\n) -> int:\n    """First.\n\n    Second.\n    """\n\n    return x\n'
    assert list(function_lengths(source)) == [("one", 1, 5)]
