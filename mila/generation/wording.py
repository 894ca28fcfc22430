"""Numbers with their nouns, for messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 token``, ``2 tokens``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def up_to(limit: int, noun: str) -> str:
    """``1 prompt``, ``1 to 2 prompts``."""
    return counted(limit, noun) if limit == 1 else f"1 to {counted(limit, noun)}"
