"""Declarations: what a component holds, said once. Everything else about memory is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mila.memory.storage import DType, Shape, element_count, storage_bytes

#: Fills an array in place: ``initializer(array, generator)``.
Initializer = Callable[[NDArray[Any], np.random.Generator], None]


class Category(StrEnum):
    """The three kinds of bytes that ``MemoryStats`` tells apart."""

    PARAMETER = "parameter"
    STATE = "state"
    GRADIENT = "gradient"


class Lifetime(Enum):
    """From when to when a buffer's bytes mean something."""

    #: As long as the network: parameters, tables, caches.
    NETWORK = "network"
    #: A value of the graph: until its last reader.
    OUTPUT = "output"
    #: From the forward step to the end of the backward step.
    SAVED = "saved"
    #: During the forward step.
    FORWARD = "forward"
    #: During the backward step.
    BACKWARD = "backward"
    #: During the forward step, and again during the backward step; not between.
    BOTH = "both"
    #: A gradient of an input: from the backward step until the input's producer has run backward.
    INPUT_GRADIENT = "input gradient"


class Over(StrEnum):
    """Whose bytes a value is written over, instead of having its own."""

    INPUT = "input"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Declaration:
    """One buffer: its name, its extent and its life.

    Attributes:
        name: unique within the component.
        port: which output (``OUTPUT``) or input (``INPUT_GRADIENT``) it belongs to.
        over: the value or gradient whose bytes it reuses; the graph must have allowed it.
        over_port: which input, or which output's gradient, it reuses.
        key: buffers of equal key under one root are one buffer, owned by its first user.
        companion_of: a parameter without which this one means nothing (the scales of a quantized table); not counted as
        parameters of its own.
    """

    name: str
    shape: Shape
    dtype: DType
    category: Category
    lifetime: Lifetime
    initializer: Initializer | None = None
    port: int = 0
    over: Over | None = None
    over_port: int = 0
    key: Hashable = None
    trainable: bool = True
    companion_of: str | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return element_count(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes, without alignment."""
        return storage_bytes(self.dtype, self.elements)


def parameter(
    name: str,
    shape: Shape,
    dtype: DType,
    initializer: Initializer,
    *,
    trainable: bool = True,
    companion_of: str | None = None,
) -> Declaration:
    """A parameter; its gradient and its moments follow from it."""
    return Declaration(
        name,
        shape,
        dtype,
        Category.PARAMETER,
        Lifetime.NETWORK,
        initializer,
        trainable=trainable,
        companion_of=companion_of,
    )


def table(name: str, shape: Shape, dtype: DType, key: Hashable, initializer: Initializer) -> Declaration:
    """A constant table, shared by all components under one root that declare an equal key."""
    return Declaration(name, shape, dtype, Category.STATE, Lifetime.NETWORK, initializer, key=key)


def persistent(name: str, shape: Shape, dtype: DType) -> Declaration:
    """State that lives as long as the network, such as a key/value cache; zero at first."""
    return Declaration(name, shape, dtype, Category.STATE, Lifetime.NETWORK)


def output(shape: Shape, dtype: DType, *, name: str = "output", port: int = 0, over: int | None = None) -> Declaration:
    """An output; ``over`` names the input port whose bytes it is written over."""
    return Declaration(
        name,
        shape,
        dtype,
        Category.STATE,
        Lifetime.OUTPUT,
        port=port,
        over=None if over is None else Over.INPUT,
        over_port=over or 0,
    )


def saved(name: str, shape: Shape, dtype: DType) -> Declaration:
    """Something that forward leaves for backward."""
    return Declaration(name, shape, dtype, Category.STATE, Lifetime.SAVED)


def workspace(name: str, shape: Shape, dtype: DType, *, during: Lifetime) -> Declaration:
    """Scratch of one step: ``FORWARD``, ``BACKWARD`` or ``BOTH``."""
    return Declaration(name, shape, dtype, Category.STATE, during)


def gradient(
    name: str, shape: Shape, dtype: DType, *, port: int = 0, over: Over | None = None, over_port: int = 0
) -> Declaration:
    """The gradient of input ``port``, in its own bytes or over those of an input or of an output's gradient."""
    return Declaration(
        f"{name}.gradient",
        shape,
        dtype,
        Category.GRADIENT,
        Lifetime.INPUT_GRADIENT,
        port=port,
        over=over,
        over_port=over_port,
    )
