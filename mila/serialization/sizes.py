"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from mila.errors import ConfigurationError
from mila.serialization.failures import shown

_SIZE = re.compile(
    r"\s*(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<prefix>[kmgt]?)(?P<binary>(?<=[kmgt])i)?b\s*", re.IGNORECASE
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(size: str | int, argument: str = "size") -> int:
    """Return a size in bytes.

    Args:
        size: bytes, or a text such as ``"5GB"`` (5,000,000,000), ``"1.5 MiB"`` (1,572,864) or ``"200B"``: decimal
            units B, KB, MB, GB, TB and binary ones KiB, MiB, GiB, TiB, in any case. Parts of a byte are cut off.
        argument: what the caller's function calls it, for the error.

    Raises:
        ConfigurationError: anything else, or less than one byte.
    """
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is not None:
        base = 1024 if match["binary"] else 1000
        prefix = match["prefix"] and match["prefix"].lower()
        found = int(Fraction(match["number"]) * base ** _POWERS[prefix])
    elif type(size) is int:
        found = size
    else:
        raise ConfigurationError(
            f"{argument}: expected a size such as '5GB', '512MiB' or a number of bytes, got {shown(size)}"
        )
    if found < 1:
        raise ConfigurationError(f"{argument}: expected a size of at least one byte, got {shown(size)}")
    return found
