"""Looks at folders."""

from __future__ import annotations

from pathlib import Path


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, hidden ones too, in their order."""
    return sorted(each.name for each in folder.iterdir())
