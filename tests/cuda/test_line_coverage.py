"""Threads reach every line of every kernel file and header, and every template is compiled somewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from mila.devices.kernel_files import FOLDER
from mila.kernels.cpu.table import CpuKernels
from mila.kernels.cuda.family import FLOAT32
from tests.cuda.attention_cases import ATTENTION_CASES
from tests.cuda.conftest import Emulated
from tests.cuda.on_device import OnDevice
from tests.cuda.shifted import Shifted
from tests.cuda.statements import statements
from tests.cuda.test_wide_indices import divided
from tests.emulator.coverage import counts_by_file
from tests.emulator.module import FORWARD, Mode, Module, Run
from tests.emulator.stand_in.settings import use
from tests.kernels.bench import Bench, Case
from tests.kernels.cases import CASES

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

pytestmark = pytest.mark.skipif(shutil.which("gcov") is None, reason="gcov is not installed")

FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".cu", ".cuh"))
#: Rows of single elements, and of whole vectors.
SHAPES = ((7, 13), (5, 16))
#: What further shapes are for, by the beginning of the names of cases: products of a single row, rows of norms and
#: heads that several warps hold, or that registers do not, ids in several tiles and many times, rows of softmax that
#: take a block each, long sums in parts, and heads for each kernel of attention.
MORE_SHAPES = {
    "layer_norm_backward": ((2, 259), (2, 260), (2, 4099), (2, 4100)),
    "rms_norm_backward": ((2, 259), (2, 260), (2, 4099), (2, 4100)),
    "head_norm_backward": ((2, 259), (2, 260)),
    "embedding_backward": ((1500, 1), (1500, 4)),
    "linear_forward": ((1, 13), (1, 16)),
    "softmax": ((2, 1301), (2, 1304)),
    "sum_axis-0": ((130, 13),),
    "attention_forward": ((3, 68), (3, 132)),
    "attention_backward": ((3, 68), (3, 132)),
}
#: The beginnings of the names of cases that also run on arrays that are not aligned: units of any size, and vectors
#: that the shape alone would allow.
NOT_ALIGNED = ("copy", "fill", "linear_backward_bias")

#: The beginnings of the names of cases that have kernels of their own where results need not repeat.
UNORDERED = ("embedding_backward",)

Counts = dict[str, dict[int, int]]


def shapes_of(case: Case) -> Iterator[tuple[int, int]]:
    yield from SHAPES
    for beginning, shapes in MORE_SHAPES.items():
        if case.name.startswith(beginning):
            yield from shapes


@pytest.fixture(scope="module")
def counts(emulated: Emulated) -> Counts:
    """How often each line ran, filled by the first test."""
    return {}


def count_all(device: CudaDevice, counts: Counts) -> None:
    """Run every case on modules that count."""
    kernels = OnDevice(device)
    with use(Run(Mode.COVERAGE, FORWARD)):
        for case in (*CASES, *ATTENTION_CASES):
            for rows, columns in shapes_of(case):
                case.build(Bench(cast(CpuKernels, kernels), FLOAT32, rows, columns)).call()
            if case.name.startswith(NOT_ALIGNED):
                case.build(Bench(cast(CpuKernels, Shifted(kernels)), FLOAT32, *SHAPES[-1])).call()
        unordered = cast(CpuKernels, OnDevice(device, device.kernels.unordered()))
        for case in CASES:
            if case.name.startswith(UNORDERED):
                for rows, columns in SHAPES:
                    case.build(Bench(unordered, FLOAT32, rows, columns)).call()
        device.synchronize()
    for module in (*counting_modules(device), divided(Mode.COVERAGE)[0]):
        for name, lines in counts_by_file(module).items():
            own = counts.setdefault(name, {})
            for line, count in lines.items():
                own[line] = own.get(line, 0) + count


def counting_modules(device: CudaDevice) -> Iterator[Module]:
    """Those that the device has loaded, for any stored type."""
    loaded = (compiled._modules for compiled in device._modules.values())
    return (modules[Mode.COVERAGE] for modules in loaded if Mode.COVERAGE in modules)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_line_is_reached(path: Path, cuda: CudaDevice, counts: Counts) -> None:
    if not counts:
        count_all(cuda, counts)
    lines = counts.get(path.name, {})
    missed = [f"{path.name}:{line}" for line, count in sorted(lines.items()) if count == 0]
    assert not missed, "no thread reaches " + ", ".join(missed)
    never = [
        f"{path.name}:{found.first} ({found.text})"
        for found in statements(path.read_text("utf-8"))
        if lines.keys().isdisjoint(range(found.first, found.last + 1))
    ]
    assert not never, "no kernel compiles " + ", ".join(never)


TEXT = """
template <typename Element> __device__ Element twice(Element value) {
  return value + value;
}
struct Pair { float left, right; };
constexpr int LENGTH = 4;  // ; of values
constexpr int middle() { return LENGTH / 2; }
extern "C" __global__ void fill(float* y) {
  __shared__ float tile[LENGTH];
  float kept, others[2];
  if constexpr (LENGTH == 4) {
    kept = 1.0f;
  } else
    kept =
        2.0f;
  auto store = [=](int i) { y[i] = kept; };
  store(0);
}
"""


def test_statements_are_what_compilers_make_code_of() -> None:
    found = [(each.first, each.last) for each in statements(TEXT)]
    assert found == [(2, 2), (3, 3), (8, 8), (12, 12), (13, 15), (16, 16), (16, 16), (17, 17)]


def test_a_template_that_nobody_uses_is_found() -> None:
    module = Module(TEXT.replace("if constexpr (LENGTH == 4)", "if constexpr (LENGTH == 5)"), mode=Mode.COVERAGE)
    lines = counts_by_file(module)["kernel.cu"]
    never = [each.first for each in statements(TEXT) if lines.keys().isdisjoint(range(each.first, each.last + 1))]
    assert never == [2, 3, 12]
    assert np.array(list(lines.values())).max() == 0
