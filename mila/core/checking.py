"""Checks of arrays at the boundary: dtype, rank, extents, layout; before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mila.core.graph import Port
from mila.devices.device import Device
from mila.errors import DeviceError, DTypeError, LifecycleError, ShapeError
from mila.kernels.signatures import Array
from mila.memory.storage import DType, Shape

if TYPE_CHECKING:
    from mila.core.component import Component

_ID_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
_MASK_DTYPES = (np.dtype(np.bool_),)


def check_inputs(
    root: Component[Any], ports: Sequence[Port], inputs: Sequence[Array], built: Sequence[Shape]
) -> list[Array]:
    """The inputs as arrays of the right dtype and layout, no larger than ``built``, whose rest is not used."""
    if len(inputs) != len(ports):
        names = ", ".join(port.name for port in ports)
        raise ShapeError(f"{root.path}: expected {len(ports)} inputs ({names}), got {len(inputs)}")
    checked, device = [], root.device
    for port, array, shape in zip(ports, inputs, built, strict=False):
        dtypes = (_MASK_DTYPES if port.is_mask else _ID_DTYPES) if port.is_ids else (root.dtype,)
        array = check_array(device, f"{root.path}: input {port.name!r}", array, dtypes)
        has_sequence = root.takes_shorter_sequences and has_sequence_axis(port.is_ids, shape)
        check_extents(f"{root.path}: input {port.name!r}", array.shape, shape, has_sequence)
        checked.append(array)
    return checked


def check_gradients(
    root: Component[Any], gradients: Sequence[Array], shapes: Sequence[Shape], dtypes: Sequence[DType]
) -> list[Array]:
    """The gradients of the outputs, of exactly the shapes of the last outputs, and of their ``dtypes``."""
    checked, device = [], root.device
    for name, array, shape, dtype in zip(root.output_names, gradients, shapes, dtypes, strict=True):
        what = f"{root.path}: gradient of {name!r}"
        array = check_array(device, what, array, (dtype,))
        if array.shape != shape:
            raise ShapeError(f"{what}: expected shape {shape}, got {array.shape}")
        checked.append(array)
    return checked


def check_array(device: Device, what: str, value: Any, dtypes: Sequence[DType]) -> Array:
    """``value`` as a C-contiguous array of ``device`` and of one of ``dtypes``, without a copy; else an error."""
    array = device.as_array(what, value)
    if array.dtype not in dtypes:
        raise DTypeError(f"{what}: expected dtype {' or '.join(d.name for d in dtypes)}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ShapeError(
            f"{what}: expected a C-contiguous array, got strides {array.strides}; pass numpy.ascontiguousarray(…)"
        )
    return array


def refuse_own_bytes(device: Device, what: str, array: Array, region: Array) -> None:
    """Raise :class:`LifecycleError` where ``array`` lies in ``region``, which the call writes to."""
    start, first = device.address_of(array), device.address_of(region)
    if start < first + region.nbytes and first < start + array.nbytes:
        raise LifecycleError(f"{what}: is a view of buffers that this call writes to; pass a copy")


def located(path: str, error: DeviceError) -> DeviceError:
    """A device's ``error`` with the ``path`` of the component that it was met in: kernels do not know who calls."""
    text = str(error)
    return error if text.startswith(f"{path}: ") else DeviceError(f"{path}: {text}")


def has_sequence_axis(is_ids: bool, shape: Shape) -> bool:
    """Whether axis 1 counts positions: of ids, and of activations with at least three axes."""
    return len(shape) >= 2 if is_ids else len(shape) >= 3


def check_extents(what: str, got: Shape, built: Shape, has_sequence: bool) -> None:
    """The batch and sequence axes may be smaller than built; all others are equal."""
    if len(got) != len(built):
        raise ShapeError(f"{what}: expected {len(built)} axes like {built}, got {got}")
    for axis, (extent, limit) in enumerate(zip(got, built, strict=True)):
        flexible = axis == 0 or (axis == 1 and has_sequence)
        if (flexible and not 1 <= extent <= limit) or (not flexible and extent != limit):
            rule = f"1 to {limit}" if flexible else str(limit)
            raise ShapeError(f"{what}: axis {axis} expected {rule}, got {extent}; shape {got}, built for {built}")
