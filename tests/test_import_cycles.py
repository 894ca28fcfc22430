"""Every module can be imported by itself, and first: no two need each other while they are loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.test_imports import SOURCES, module_name, run_python, sources_of

MODULES = {module_name(path): path for path in SOURCES}


def imports_when_loaded(
    source: str, module: str, is_package: bool, known: Sequence[str] | Mapping[str, object]
) -> set[str]:
    """The modules among ``known`` that must be there before ``module`` is: those imported outside functions."""
    found = set()
    for statement in statements_when_loaded(ast.parse(source).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            for origin in sources_of(statement, module, is_package):
                names = {f"{origin}.{alias.name}" for alias in statement.names}
                submodules = names & {*known}
                found |= submodules or {origin}
                if submodules < names:
                    found.add(origin)
    return {name for name in found if name in known and name != module}


def statements_when_loaded(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is loaded: those of functions, and for type checking, are left out."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from statements_when_loaded(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from statements_when_loaded(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from statements_when_loaded(handler.body)


def needs(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """What must be loaded before each module: what it imports, and the packages around that, but for its own."""
    graph = {}
    for module, (source, is_package) in sources.items():
        imported = imports_when_loaded(source, module, is_package, sources)
        around = {
            ".".join(parts[:length])
            for parts in (name.split(".") for name in imported)
            for length in range(1, len(parts))
        }
        own = {".".join(module.split(".")[:length]) for length in range(1, module.count(".") + 2)}
        graph[module] = imported | ((around - own) & {*sources})
    return graph


def cycle(sources: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Modules that need each other, the first again at the end; none where all is well."""
    try:
        TopologicalSorter(needs(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_needs_one_that_needs_it() -> None:
    sources = {name: (path.read_text("utf-8"), path.name == "__init__.py") for name, path in MODULES.items()}
    assert cycle(sources) == []


@pytest.mark.parametrize(
    "sources",
    [
        {"mila.a": "from mila.b import name", "mila.b": "import mila.c", "mila.c": "from mila.a import name"},
        {"mila.a": "if True:\n    from . import b", "mila.b": "try:\n    import mila.a\nexcept ImportError:\n    pass"},
        {"mila.p": "from mila.q import x", "mila.q": "from mila.p.one import x", "mila.p.one": "from mila.p import y"},
        # the package around an import is loaded first, and it wants the module that began
        {
            "mila.p": "",
            "mila.p.one": "from mila.q.two import x",
            "mila.q": "from mila.p.one import x",
            "mila.q.two": "",
        },
    ],
)
def test_a_cycle_is_found(sources: dict[str, str]) -> None:
    packages = {name.rpartition(".")[0] for name in sources}
    found = cycle({name: (source, name in packages) for name, source in sources.items()})
    assert len(found) > 2
    assert found[0] == found[-1]


@pytest.mark.parametrize(
    "sources",
    [
        {"mila.a": "def late() -> None:\n    from mila.b import name", "mila.b": "import mila.a"},
        {"mila.a": "if TYPE_CHECKING:\n    from mila.b import name", "mila.b": "import mila.a"},
        {"mila.p": "from mila.p.one import x", "mila.p.one": "from mila.p.two import x", "mila.p.two": ""},
        {"mila.p": "from mila.p import one, two", "mila.p.one": "from mila.p import two", "mila.p.two": ""},
    ],
)
def test_what_is_no_cycle_is_accepted(sources: dict[str, str]) -> None:
    packages = {name.rpartition(".")[0] for name in sources}
    assert cycle({name: (source, name in packages) for name, source in sources.items()}) == []


def test_every_package_imports_by_itself() -> None:
    """Without mila/__init__.py before it, so that none leans on what another happened to import."""
    packages = [name for name, path in MODULES.items() if path.name == "__init__.py"]
    completed = run_python(f"""
        import importlib, importlib.util, sys, types

        location = importlib.util.find_spec("mila").submodule_search_locations
        for name in {packages!r}:
            for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "mila"]:
                del sys.modules[loaded]
            if name != "mila":
                sys.modules["mila"] = types.ModuleType("mila")
                sys.modules["mila"].__path__ = location
            try:
                importlib.import_module(name)
            except Exception as error:
                print(name, repr(error))
    """)
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stdout + completed.stderr
