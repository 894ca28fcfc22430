"""Where a network's weights came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mila.core import LoadReport


@dataclass(frozen=True)
class Pretrained:
    """The model folder that a network was loaded from.

    Attributes:
        folder: its absolute path, so that an export finds its files from another working folder.
        model_type: its architecture.
        raw: the content of its ``config.json``.
        report: what loading did.
    """

    folder: Path
    model_type: str
    raw: Mapping[str, Any]
    report: LoadReport
