"""``--device`` and ``--threads``, and what is made of them: the same for every command that computes."""

from __future__ import annotations

from typing import Annotated

import typer

from mila.devices import DeviceId, DeviceType, ExecutionContext
from mila.devices.execution_context import MAXIMUM_THREADS
from mila.errors import ConfigurationError, DeviceError

Device = Annotated[str, typer.Option(metavar="<device>", help="Where to compute: cpu or cuda:<index>.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Threads to compute on (cpu); by default all usable processors, at most {MAXIMUM_THREADS}. Fewer can be "
        "faster where others keep the processors busy.",
    ),
]


def execution_context(device: str, threads: int | None = None) -> ExecutionContext:
    """The device that the options name, with its kernels.

    Raises:
        ConfigurationError: a text that names no device, or threads for one that has its own.
        DeviceError: the device does not exist here, or what Mila needs for it is not installed.
    """
    try:
        device_id = DeviceId.parse(device)
    except DeviceError as error:
        raise ConfigurationError(f"--{error}") from error
    if threads is not None and device_id.type is not DeviceType.CPU:
        raise ConfigurationError(f"--threads: is an option of --device cpu, got it with {device_id}")
    return ExecutionContext(device_id, threads=threads)
