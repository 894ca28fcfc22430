"""What CuPy takes, as it was recorded: the stand-in takes nothing else, and the record is the installed CuPy's."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator import cupy_signatures
from tests.emulator.cupy_names import Mention
from tests.emulator.cupy_signatures import Signature, parsed, recorded, unfit_calls, unrecorded_names
from tests.emulator.stand_in.activate import stand_in_cupy
from tests.emulator.test_cupy_names import MODULE_NAMES, names_of

#: Parameters that the real one hands on, unnamed, to another call.
HANDED_ON = {("cupy.RawKernel.__call__", "shared_mem"), ("cupy.RawKernel.__call__", "stream")}


def test_declarations_are_read_in_python_and_in_cython() -> None:
    cython = parsed("self, int value, size_t size, stream=None")
    assert cython == Signature(
        ("value", "size", "stream"), frozenset({"value", "size", "stream"}), frozenset({"value", "size"}), False
    )
    python = parsed("shape, dtype: type = (1, 2), /, *, order='C', **rest")
    assert python.positional == ("shape", "dtype")
    assert (python.by_name, python.required, python.takes_all) == (frozenset({"order"}), frozenset({"shape"}), True)
    assert parsed("").refuses(0, frozenset()) is None


def test_calls_that_cupy_would_not_take_are_found() -> None:
    source = """
import cupy as cp
from cupy.cuda import Stream, cublas
Stream(non_blocking=True), Stream(nonblocking=True)
cp.cuda.MemoryPool().malloc(4)
cp.cuda.alloc_pinned_memory(), cp.RawModule("text", code="text"), cp.RawModule(code="text", options=())
cublas.setStream(1), cublas.setStream(1, 2)
"""
    assert unfit_calls(source) == [
        "line 4: cupy.cuda.Stream has no parameter nonblocking",
        "line 6: cupy.cuda.alloc_pinned_memory needs size",
        "line 7: cupy.cuda.cublas.setStream needs stream",
    ]


def test_names_that_were_not_recorded_are_found() -> None:
    source = "import cupy\ncupy.cuda.Stream.null.ptr, cupy.cuda.Stream.nil, cupy.cuda.cublas.gemmOx, cupy.RawModul"
    assert {mention.name for mention in unrecorded_names(source)} == {
        "cupy.cuda.Stream.nil",
        "cupy.cuda.cublas.gemmOx",
        "cupy.RawModul",
    }


def stand_in_things() -> Iterator[tuple[str, Any]]:
    """Yield what the stand-in offers, with its names."""
    with stand_in_cupy() as cupy:
        names = [
            *names_of(cupy, "cupy"),
            *names_of(cupy.cuda, "cupy.cuda"),
            *(f"cupy.cuda.{module}.{name}" for module, name in MODULE_NAMES),
            *(f"cupy.cuda.cublas.{name}" for name in ("create", "destroy")),
        ]
        for name in names:
            thing: Any = cupy
            for part in name.split(".")[1:]:
                thing = getattr(thing, part)
            yield name, thing
        for name in ("cupy.RawKernel.__call__",):
            yield name, cupy.RawKernel.__call__


STAND_IN = list(stand_in_things())


def test_everything_of_the_stand_in_was_recorded() -> None:
    source = "\n".join(["import cupy", *(name for name, _ in STAND_IN)])
    assert unrecorded_names(source) == []


#: Nobody but CuPy itself makes errors and pinned memory.
MADE_ELSEWHERE = (BaseException, bytearray)
CALLED = [
    (name, thing)
    for name, thing in STAND_IN
    if callable(thing) and recorded().get(name) is not None
    if not (isinstance(thing, type) and issubclass(thing, MADE_ELSEWHERE))
]


@pytest.mark.parametrize(("name", "thing"), CALLED, ids=[name for name, _ in CALLED])
def test_the_stand_in_takes_nothing_that_cupy_does_not(name: str, thing: Any) -> None:
    real, own = recorded()[name], list(inspect.signature(thing).parameters.values())
    assert real is not None
    own = [parameter for parameter in own if parameter.name != "self"]
    kinds = inspect.Parameter
    by_place = [parameter.name for parameter in own if parameter.kind is kinds.POSITIONAL_OR_KEYWORD]
    assert tuple(by_place) == real.positional[: len(by_place)]
    by_name = {parameter.name for parameter in own if parameter.kind is kinds.KEYWORD_ONLY}
    assert {n for n in by_name if (name, n) not in HANDED_ON} <= real.by_name
    assert real.required <= {parameter.name for parameter in own if parameter.default is kinds.empty}


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_the_record_is_that_of_the_installed_cupy() -> None:
    import cupy

    text = cupy_signatures.RECORD.read_text("utf-8")
    if not text.startswith(f"# CuPy {cupy.__version__},"):
        pytest.skip(f"another CuPy was recorded: {text.splitlines()[0]}; installed is {cupy.__version__}")
    assert text.splitlines()[1:] == sorted(set(cupy_signatures.lines()))


def test_a_mention_says_where_it_is() -> None:
    assert unrecorded_names("import cupy\n\ncupy.cuda.Strem") == [Mention("cupy.cuda.Strem", 3)]
