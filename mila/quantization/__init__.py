"""Quantization policies."""

from mila.quantization.per_channel_fp8 import PerChannelFp8, quantize_rows, rows_are_finite, scales_are_usable

__all__ = ["PerChannelFp8", "quantize_rows", "rows_are_finite", "scales_are_usable"]
