"""The check of ids against a vocabulary, before any narrowing."""

from __future__ import annotations

from typing import Any

from mila.core.component import Component
from mila.errors import TokenIdError
from mila.kernels.signatures import Array


def check_token_ids(
    component: Component[Any], what: str, ids: Array, vocab_size: int, *, except_for: int | None = None
) -> None:
    """Raise :class:`TokenIdError` that names the first id outside ``0 … vocab_size - 1`` and its position.

    ``except_for`` is an ignore index.
    """
    smallest, largest = component.kernels.integer_range(ids)
    if smallest >= 0 and largest < vocab_size:
        return
    index = component.kernels.first_outside(ids, vocab_size, except_for)
    if index >= 0:
        (found,), rest = component.device.download(ids.reshape(-1)[index : index + 1]).tolist(), index
        position: list[int] = []
        for extent in reversed(ids.shape):
            rest, place = divmod(rest, extent)
            position.insert(0, place)
        raise TokenIdError(
            f"{component.path}: {what} {found} at position {tuple(position)} is outside 0 … {vocab_size - 1}"
        )
