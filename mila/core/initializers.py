"""Initial values of parameters, drawn from generators keyed by seed and state name.

Values are drawn as float32 on the host and then stored, so that one seed gives the same weights in every dtype and on
every device.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.errors import ConfigurationError
from mila.memory.declarations import Initializer
from mila.serialization.conversion import FLOATS

#: Elements drawn at a time.
_CHUNK = 1 << 16


def generator_for(seed: int, state_name: str) -> np.random.Generator:
    """The generator of one parameter: a function of the seed and the name of the state, and of nothing else."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, key_of(state_name)))))


def key_of(state_name: str) -> int:
    """A 128-bit number from a name."""
    return int.from_bytes(hashlib.sha256(state_name.encode()).digest()[:16], "little")


def zeros(array: NDArray[Any], generator: np.random.Generator) -> None:
    """All zero."""
    array.fill(0)


def ones(array: NDArray[Any], generator: np.random.Generator) -> None:
    """All one."""
    array.fill(1)


def constant(value: float) -> Initializer:
    """All ``value``, rounded to float32; a dtype that does not hold it is a :class:`ConfigurationError`."""

    def fill(array: NDArray[Any], generator: np.random.Generator) -> None:
        if abs(value) > FLOATS[array.dtype]:
            raise ConfigurationError(f"the initial value {value} is beyond the range of {array.dtype}")
        array.fill(np.float32(value))

    return fill


def normal(standard_deviation: float) -> Initializer:
    """Normal around 0."""

    def draw(chunk: NDArray[np.float32], generator: np.random.Generator) -> None:
        generator.standard_normal(out=chunk, dtype=np.float32)
        np.multiply(chunk, np.float32(standard_deviation), out=chunk)

    return _in_chunks(draw)


def uniform(bound: float) -> Initializer:
    """Uniform between ``-bound`` and ``bound``."""

    def draw(chunk: NDArray[np.float32], generator: np.random.Generator) -> None:
        generator.random(out=chunk, dtype=np.float32)
        np.multiply(chunk, np.float32(2 * bound), out=chunk)
        np.subtract(chunk, np.float32(bound), out=chunk)

    return _in_chunks(draw)


def xavier_uniform(fan_in: int, fan_out: int) -> Initializer:
    """Uniform within ``sqrt(6 / (fan_in + fan_out))`` (Glorot & Bengio 2010)."""
    return uniform(math.sqrt(6 / (fan_in + fan_out)))


def _in_chunks(draw: Any) -> Initializer:
    def fill(array: NDArray[Any], generator: np.random.Generator) -> None:
        flat = array.reshape(-1)
        chunk = np.empty(min(_CHUNK, max(1, flat.size)), np.float32)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            draw(chunk[: part.size], generator)
            part[...] = chunk[: part.size]

    return fill
