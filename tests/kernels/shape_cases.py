"""Cases of the shape kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mila.kernels.signatures import Array
from tests.kernels.bench import Bench, Build, Case, Run, wide

#: NumPy's names of the padding modes.
NUMPY_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
Pads = tuple[tuple[int, int], ...]


def padded(x: Array, pads: Pads, mode: str, value: float) -> Array:
    options = {"constant_values": value} if mode == "constant" else {}
    result: Array = np.pad(x, pads, mode=NUMPY_MODES[mode], **options)  # type: ignore[call-overload]
    return result


def pad_gradient(dy: Array, shape: tuple[int, ...], pads: Pads, mode: str) -> Array:
    """Add every element of ``dy`` where the number that its place holds says."""
    places = padded(np.arange(np.prod(shape)).reshape(shape), pads, mode, -1)
    held = places >= 0
    flat = np.zeros(np.prod(shape))
    np.add.at(flat, places[held], dy[held])
    return flat.reshape(shape)


def shape_cases() -> Iterator[Case]:
    yield from section_cases()
    yield from pad_cases()
    yield from sum_cases()
    for axes in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)):
        yield Case(f"permute-{axes}", permute(axes), elementwise=True)


def section_cases() -> Iterator[Case]:
    def take(axis: int, start: int, extent: int) -> Build:
        def build(b: Bench) -> Run:
            x = b.array(b.rows, 3, b.columns // 2 + 3).swapaxes(1, axis).copy()
            expected = np.moveaxis(np.moveaxis(x, axis, 0)[start : start + extent], 0, axis)
            output = b.empty(*expected.shape)
            return Run(
                lambda: b.kernels.take_section(output, x, axis, start), {"output": output}, {"output": wide(expected)}
            )

        return build

    def put(axis: int, start: int, extent: int) -> Build:
        def build(b: Bench) -> Run:
            output = b.array(b.rows, 3, b.columns // 2 + 3).swapaxes(1, axis).copy()
            expected = wide(output)
            x = np.moveaxis(b.array(extent, *np.moveaxis(output, axis, 0).shape[1:]), 0, axis).copy()
            np.moveaxis(expected, axis, 0)[start : start + extent] = np.moveaxis(x, axis, 0)
            return Run(lambda: b.kernels.put_section(output, x, axis, start), {"output": output}, {"output": expected})

        return build

    for axis in range(3):
        for start, extent in ((0, 2), (1, 2)):
            yield Case(f"take_section-{axis}-{start}-{extent}", take(axis, start, extent), elementwise=True)
            yield Case(f"put_section-{axis}-{start}-{extent}", put(axis, start, extent), elementwise=True)


def permute(axes: tuple[int, ...]) -> Build:
    def build(b: Bench) -> Run:
        x = b.array(b.rows, 3, b.columns)
        output = b.empty(*x.transpose(axes).shape)
        return Run(lambda: b.kernels.permute(output, x, axes), {"output": output}, {"output": wide(x.transpose(axes))})

    return build


def pad_cases() -> Iterator[Case]:
    def forward(pads: Pads, mode: str, value: float) -> Build:
        def build(b: Bench) -> Run:
            x = b.array(b.rows, 3, b.columns // 3 + 3)
            expected = padded(wide(x), pads, mode, value)
            output = b.empty(*expected.shape)
            return Run(
                lambda: b.kernels.pad_forward(output, x, pads, mode, value), {"output": output}, {"output": expected}
            )

        return build

    def backward(pads: Pads, mode: str) -> Build:
        def build(b: Bench) -> Run:
            dx = b.empty(b.rows, 3, b.columns // 3 + 3)
            dy = b.array(*(extent + sum(pair) for extent, pair in zip(dx.shape, pads, strict=True)))
            expected = pad_gradient(wide(dy), dx.shape, pads, mode)
            return Run(lambda: b.kernels.pad_backward(dx, dy, pads, mode), {"dx": dx}, {"dx": expected})

        return build

    for mode in NUMPY_MODES:
        for middle, last in (((1, 2), (0, 0)), ((2, 0), (2, 1))):
            pads = ((0, 0), middle, last)
            name = f"{mode}-{middle}-{last}"
            yield Case(f"pad_forward-{name}", forward(pads, mode, 0.3), elementwise=True)
            yield Case(f"pad_backward-{name}", backward(pads, mode), elementwise=True)


def sum_cases() -> Iterator[Case]:
    def forward(axis: int, factor: float) -> Build:
        def build(b: Bench) -> Run:
            x = b.array(b.rows, 3, b.columns // 2 + 3)
            expected = factor * wide(x).sum(axis)
            output = b.empty(*expected.shape)
            return Run(lambda: b.kernels.sum_axis(output, x, axis, factor), {"output": output}, {"output": expected})

        return build

    def backward(axis: int, factor: float) -> Build:
        def build(b: Bench) -> Run:
            dx = b.empty(b.rows, 3, b.columns // 2 + 3)
            dy = b.array(*dx.sum(axis, keepdims=True).shape)
            expected = np.broadcast_to(factor * wide(dy), dx.shape)
            return Run(lambda: b.kernels.spread_axis(dx, dy, axis, factor), {"dx": dx}, {"dx": expected})

        return build

    for axis in range(3):
        for factor in (1.0, -0.2):
            yield Case(f"sum_axis-{axis}-{factor}", forward(axis, factor))
            yield Case(f"spread_axis-{axis}-{factor}", backward(axis, factor), elementwise=True)
