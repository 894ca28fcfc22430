"""Initial values of parameters, drawn from generators keyed by seed and state name.

Values are drawn as float32 on the host and then stored, so that one seed gives the same weights in every dtype and on
every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.devices.device import Device
from mila.errors import ConfigurationError
from mila.memory.declarations import Category, Declaration, Initializer
from mila.memory.storage import FLOAT32
from mila.serialization.conversion import FLOATS

#: Elements drawn at a time.
_CHUNK = 1 << 16


def generator_for(seed: int, state_name: str) -> np.random.Generator:
    """The generator of one parameter: a function of the seed and the name of the state, and of nothing else."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, key_of(state_name)))))


def key_of(state_name: str) -> int:
    """A 128-bit number from a name."""
    return int.from_bytes(hashlib.sha256(state_name.encode()).digest()[:16], "little")


def initialize(device: Device, declaration: Declaration, array: NDArray[Any], generator: np.random.Generator) -> None:
    """Give an array of ``device`` the initial values of what was declared.

    Parameters are drawn on the host, whatever the device; tables are computed by the device's kernels.
    """
    if declaration.initializer is None:
        return
    if device.is_host or declaration.category is not Category.PARAMETER:
        declaration.initializer(array, generator)
        return
    if isinstance(declaration.initializer, Drawn):
        flat = array.reshape(-1)
        for start, chunk in declaration.initializer.chunks(flat.size, generator):
            device.upload(flat[start : start + chunk.size], chunk)
        return
    values = np.empty(declaration.shape, declaration.dtype)
    declaration.initializer(values, generator)
    device.upload(array, values)


def zeros(array: NDArray[Any], generator: np.random.Generator) -> None:
    """All zero."""
    array.fill(0)


def ones(array: NDArray[Any], generator: np.random.Generator) -> None:
    """All one."""
    array.fill(1)


def constant(value: float) -> Initializer:
    """All ``value``, rounded to float32; a dtype that does not hold it is a :class:`ConfigurationError`."""

    def fill(array: NDArray[Any], generator: np.random.Generator) -> None:
        narrower = min(array.dtype, FLOAT32, key=FLOATS.__getitem__)
        if abs(value) > FLOATS[narrower]:
            raise ConfigurationError(f"the initial value {value} is beyond the range of {narrower}")
        array.fill(np.float32(value))

    return fill


def normal(standard_deviation: float) -> Initializer:
    """Normal around 0."""

    def draw(chunk: NDArray[np.float32], generator: np.random.Generator) -> None:
        generator.standard_normal(out=chunk, dtype=np.float32)
        np.multiply(chunk, np.float32(standard_deviation), out=chunk)

    return Drawn(draw)


def uniform(bound: float) -> Initializer:
    """Uniform between ``-bound`` and ``bound``."""

    def draw(chunk: NDArray[np.float32], generator: np.random.Generator) -> None:
        generator.random(out=chunk, dtype=np.float32)
        np.multiply(chunk, np.float32(2 * bound), out=chunk)
        np.subtract(chunk, np.float32(bound), out=chunk)

    return Drawn(draw)


def xavier_uniform(fan_in: int, fan_out: int) -> Initializer:
    """Uniform within ``sqrt(6 / (fan_in + fan_out))`` (Glorot & Bengio 2010)."""
    return uniform(math.sqrt(6 / (fan_in + fan_out)))


class Drawn:
    """An initializer that draws float32 values in order, some at a time.

    Args:
        draw: fills a chunk from a generator.
    """

    def __init__(self, draw: Callable[[NDArray[np.float32], np.random.Generator], None]) -> None:
        self._draw = draw

    def chunks(self, size: int, generator: np.random.Generator) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """All ``size`` values, chunk by chunk with the number of the first; the next chunk overwrites the last."""
        chunk = np.empty(min(_CHUNK, max(1, size)), np.float32)
        for start in range(0, size, _CHUNK):
            part = chunk[: min(_CHUNK, size - start)]
            self._draw(part, generator)
            yield start, part

    def __call__(self, array: NDArray[Any], generator: np.random.Generator) -> None:
        """Fill ``array``."""
        flat = array.reshape(-1)
        for start, chunk in self.chunks(flat.size, generator):
            flat[start : start + chunk.size] = chunk
