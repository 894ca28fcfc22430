"""Quantization policies."""

from mila.quantization.per_channel_fp8 import PerChannelFp8, quantize_rows

__all__ = ["PerChannelFp8", "quantize_rows"]
