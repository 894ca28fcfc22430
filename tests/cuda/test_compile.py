"""Every kernel compiles to machine code of real GPUs, spills no register, and takes no more than was recorded."""

from __future__ import annotations

import pytest

from mila.devices.kernel_files import kernels_of
from mila.kernels.cuda.family import DType
from tests.cuda import resources
from tests.emulator import nvrtc, resource_table

pytestmark = pytest.mark.skipif(nvrtc.missing_nvrtc() is not None, reason=nvrtc.missing_nvrtc() or "")

#: Registers that a multiprocessor has, and that a thread may use.
MOST_REGISTERS, MOST_REGISTERS_OF_A_THREAD = 65536, 255


@pytest.mark.parametrize(
    ("source", "dtype"), resources.MODULES, ids=[resources.module_name(*module) for module in resources.MODULES]
)
def test_compiles_within_what_was_recorded(source: str, dtype: DType) -> None:
    measured = resources.measure(source, dtype)
    assert {kernel for _, kernel, _ in measured} == set(kernels_of(source, dtype))
    for key, used in measured.items():
        assert used.spill_stores == used.spill_loads == 0, key
    version, table = resources.recorded()
    if version != "{}.{}".format(*nvrtc.version()):
        pytest.skip(f"the table was recorded with NVRTC {version}, installed is {nvrtc.version()}")
    name = resources.module_name(source, dtype)
    own = {key: used for key, used in table.items() if key[0] == name}
    problems = resource_table.problems(own, measured)
    assert not problems, "; ".join(problems) + " (python -m tests.cuda.resources records the table anew)"


def test_the_table_names_nothing_that_is_gone() -> None:
    _, table = resources.recorded()
    modules = {resources.module_name(*module) for module in resources.MODULES}
    assert {file for file, _, _ in table} == modules
