"""What the shipped kernels take on each architecture; ``python -m tests.cuda.resources`` records it.

The recorded table is read by tests: spills fail, and so does anything that takes more than was recorded. Counts of
registers belong to a version of NVRTC, which the table names.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mila.devices.kernel_files import compile_options, source_text, sources
from mila.kernels.cuda.family import DTYPE_MACROS, DType
from tests.emulator import nvrtc, resource_table, toolchain
from tests.emulator.resource_table import Table

TABLE = Path(__file__).with_name("resources.tsv")
#: What CuPy 14 adds to the options of every module.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
#: Every file with every stored dtype.
MODULES = [(source, dtype) for source in sources() for dtype in DTYPE_MACROS]


def module_name(source: str, dtype: DType) -> str:
    """What the table calls a file that is compiled for a stored dtype."""
    return f"{source}.cu {dtype.name}"


def measure(source: str, dtype: DType) -> Table:
    """What the kernels of one module take on every architecture: compiled once, then remembered."""
    text, options = source_text(source), (*compile_options(dtype), *CUPY_OPTIONS)
    name = module_name(source, dtype)

    def compiled(architecture: str) -> nvrtc.Compiled:
        return nvrtc.compile_text(text, architecture, options=options, filename=f"{source}.cu")

    def build(folder: Path) -> None:
        with ThreadPoolExecutor(max_workers=2) as executor:
            modules = list(executor.map(compiled, nvrtc.ARCHITECTURES))
        table = {
            (name, kernel, module.architecture): resources
            for module in modules
            for kernel, resources in module.resources.items()
        }
        resource_table.write(folder / TABLE.name, table)

    version = "{}.{}".format(*nvrtc.version())
    inputs = [text, *options, version, *nvrtc.ARCHITECTURES]
    return resource_table.read(toolchain.compile_once("resources", inputs, build) / TABLE.name)[1]


def recorded() -> tuple[str, Table]:
    """The version of NVRTC and the table that were checked in."""
    return resource_table.read(TABLE)


def record() -> None:
    """Write the table anew."""
    table: Table = {}
    for module in MODULES:
        table.update(measure(*module))
    resource_table.write(TABLE, table)


if __name__ == "__main__":
    record()
