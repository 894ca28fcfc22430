"""The check of ids against a vocabulary, before any narrowing."""

from __future__ import annotations

from typing import Any

import numpy as np

from mila.core.component import Component
from mila.errors import TokenIdError
from mila.kernels.signatures import Array


def check_token_ids(
    component: Component[Any], what: str, ids: Array, vocab_size: int, *, except_for: int | None = None
) -> None:
    """Raise :class:`TokenIdError` that names the first id outside ``0 … vocab_size - 1`` and its position.

    The check reads the smallest and the largest id only, unless ``except_for`` (an ignore index) lies outside.
    """
    smallest, largest = component.kernels.integer_range(ids)
    if smallest >= 0 and largest < vocab_size:
        return
    outside = (ids < 0) | (ids >= vocab_size)
    if except_for is not None:
        outside &= ids != except_for
    found = np.argwhere(outside)
    if len(found):
        position = tuple(int(i) for i in found[0])
        raise TokenIdError(
            f"{component.path}: {what} {int(ids[position])} at position {position} is outside 0 … {vocab_size - 1}"
        )
