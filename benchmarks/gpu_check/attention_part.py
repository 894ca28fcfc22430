"""Part: attention beside PyTorch's ``scaled_dot_product_attention``: whole sequences, and one query against a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu_check.bench import Arrays, Bench
from benchmarks.gpu_check.kernels_part import copy_row
from benchmarks.gpu_check.operations import attention_operations
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.settings import AttentionSizes, Settings
from benchmarks.gpu_check.torch_side import Tensor, TorchSide, difference, find_torch
from mila.kernels.signatures import Array

#: No causal call of Mila has a window here.
_NO_WINDOW = 0


def measure(settings: Settings) -> Iterator[Row]:
    """Forward, forward and backward, and decoding; a ratio is PyTorch's time divided by Mila's."""
    bench, torch_side = Bench(settings), find_torch(settings)
    rate = bench.copy_rate()
    yield copy_row(rate)
    for sizes in settings.attention:
        yield from _guarded(f"attention {sizes}", partial(_whole, bench, torch_side, sizes))
    for sizes in settings.decode_attention:
        yield from _guarded(f"attention_cached {sizes}", partial(_cached, bench, torch_side, sizes, rate))


def _guarded(what: str, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Rows of one size; if it fails the others still run."""
    try:
        yield from rows()
    except Exception as error:
        yield Row(what, f"failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Packed:
    """Arrays of one causal call: ``qkv (B, T, (H + 2 K) D)`` and all that comes of it."""

    sizes: AttentionSizes
    qkv: Array
    output: Array
    log_sum_exp: Array
    dy: Array
    dqkv: Array


def _packed(a: Arrays, sizes: AttentionSizes) -> _Packed:
    rows, length, width = sizes.rows, sizes.length, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
    result = (rows, length, sizes.heads * sizes.head_dim)
    return _Packed(
        sizes,
        a.values(rows, length, width),
        a.empty(*result),
        a.statistics(rows, sizes.heads, length),
        a.values(*result),
        a.empty(rows, length, width),
    )


def _whole(bench: Bench, torch_side: TorchSide | str, sizes: AttentionSizes) -> Iterator[Row]:
    a = Arrays(bench, bench.settings.dtype)
    arrays, kernels = _packed(a, sizes), bench.kernels
    numbers = (sizes.heads, sizes.kv_heads, sizes.head_dim, True, _NO_WINDOW, 1 / math.sqrt(sizes.head_dim))
    layout = (sizes.length, sizes.heads, sizes.kv_heads, sizes.head_dim)
    forward_workspace = a.workspace(kernels.attention_forward_workspace(*layout))
    backward_workspace = a.workspace(kernels.attention_backward_workspace(*layout))

    def forward() -> None:
        kernels.attention_forward(arrays.output, arrays.log_sum_exp, arrays.qkv, *numbers, forward_workspace)

    def both() -> None:
        forward()
        gradients = arrays.dqkv, arrays.log_sum_exp, arrays.dy, arrays.output, arrays.qkv
        kernels.attention_backward(*gradients, *numbers, backward_workspace)

    theirs = None if isinstance(torch_side, str) else _TorchAttention(torch_side, bench, arrays)
    once = attention_operations(sizes, causal=True)
    twice = once + attention_operations(sizes, causal=True, backward=True)
    for name, run, operations in (("forward", forward, once), ("forward and backward", both, twice)):
        milliseconds = bench.milliseconds(run)
        other = None if theirs is None else theirs.milliseconds(backward=run is both)
        remark = torch_side if theirs is None else theirs.remark(bench, backward=run is both)
        yield _row(f"attention {name} {sizes} causal {a.dtype.name}", milliseconds, operations, other, str(remark))


def _row(what: str, milliseconds: float, operations: int, other: float | None, remark: str) -> Row:
    beside = remark if other is None else f"PyTorch {other:.3f} ms; {remark}"
    return Row(
        what,
        f"{milliseconds:.3f} ms, {operations / milliseconds / 1e9:,.3g} TFLOP/s",
        beside,
        None if other is None else other / milliseconds,
        figures={"milliseconds": milliseconds, "torch_milliseconds": other, "operations": operations},
    )


class _TorchAttention:
    """PyTorch on the same numbers, which lie in the same packed array."""

    def __init__(self, side: TorchSide, bench: Bench, arrays: _Packed) -> None:
        self._side, self._arrays, sizes = side, arrays, arrays.sizes
        packed = side.tensor(bench.device.download(arrays.qkv))
        parts = packed.unflatten(-1, (-1, sizes.head_dim)).transpose(1, 2)
        parts = parts.split((sizes.heads, sizes.kv_heads, sizes.kv_heads), dim=1)
        self._inputs: list[Tensor] = [part.detach().requires_grad_() for part in parts]
        self._dy = side.tensor(bench.device.download(arrays.dy)).unflatten(-1, (-1, sizes.head_dim)).transpose(1, 2)

    def _forward(self) -> Tensor:
        q, k, v = self._inputs
        return scaled_dot_product(self._side, q, k, v, causal=True)

    def _forward_only(self) -> Tensor:
        with self._side.torch.no_grad():
            return self._forward()

    def _both(self) -> Any:
        return self._side.torch.autograd.grad(self._forward(), self._inputs, self._dy)

    def milliseconds(self, backward: bool) -> float:
        """The median time."""
        return self._side.milliseconds(self._both if backward else self._forward_only)

    def remark(self, bench: Bench, backward: bool) -> str:
        """How far the results are apart."""
        if backward:
            theirs = self._side.torch.cat([gradient.transpose(1, 2).flatten(2) for gradient in self._both()], dim=-1)
            return f"largest difference of a gradient {difference(bench, self._arrays.dqkv, theirs):.1e}"
        theirs = self._forward_only().transpose(1, 2).flatten(2)
        return f"largest difference {difference(bench, self._arrays.output, theirs):.1e}"


def scaled_dot_product(side: TorchSide, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """PyTorch's attention with grouped heads."""
    attend = side.torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def _cached(bench: Bench, torch_side: TorchSide | str, sizes: AttentionSizes, rate: float) -> Iterator[Row]:
    """One query per row at the last position of a full cache; PyTorch does not append anything."""
    a, kernels = Arrays(bench, bench.settings.dtype), bench.kernels
    ring = (sizes.rows, sizes.kv_heads, sizes.length, sizes.head_dim)
    keys, values = a.values(*ring), a.values(*ring)
    qkv = a.values(sizes.rows, 1, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim)
    output = a.empty(sizes.rows, 1, sizes.heads * sizes.head_dim)
    scale, starts = 1 / math.sqrt(sizes.head_dim), [sizes.length - 1] * sizes.rows
    layout = (1, sizes.length, sizes.heads, sizes.kv_heads, sizes.head_dim, _NO_WINDOW)
    workspace = a.workspace(kernels.attention_cached_workspace(*layout))

    def run() -> None:
        lengths = [1] * sizes.rows
        kernels.attention_cached(output, keys, values, qkv, starts, lengths, sizes.heads, _NO_WINDOW, scale, workspace)

    milliseconds, read = bench.milliseconds(run), keys.nbytes + values.nbytes
    reached = 1e3 * read / milliseconds
    other, remark = None, str(torch_side)
    if not isinstance(torch_side, str):
        queries = bench.device.download(qkv)[:, :, : sizes.heads * sizes.head_dim].copy()
        q = torch_side.tensor(queries).unflatten(-1, (-1, sizes.head_dim)).transpose(1, 2)
        k, v = (torch_side.tensor(bench.device.download(array)) for array in (keys, values))  # after the append
        with torch_side.torch.no_grad():
            other = torch_side.milliseconds(lambda: scaled_dot_product(torch_side, q, k, v, causal=False))
            theirs = scaled_dot_product(torch_side, q, k, v, causal=False).transpose(1, 2).flatten(2)
        remark = f"largest difference {difference(bench, output, theirs):.1e}"
    what = f"attention_cached one query {sizes} {a.dtype.name}"
    beside = remark if other is None else f"PyTorch {other:.3f} ms; {remark}"
    figures = {"milliseconds": milliseconds, "torch_milliseconds": other, "cache_bytes": read}
    yield Row(what, f"{milliseconds:.3f} ms", beside, None if other is None else other / milliseconds, figures=figures)
    yield Row(
        f"{what}: reading the cache", f"{reached / 1e9:,.0f} GB/s", f"copy {rate / 1e9:,.0f} GB/s", reached / rate
    )
