"""The published form of ``mila plan --list-presets --json``."""

from __future__ import annotations

from typing import Literal

from mila.planning.report import Document


class PresetEntry(Document):
    """A preset: its names, what it is, and where its weights are published, in which dtype."""

    name: str
    aliases: list[str]
    model_type: str
    parameters: int
    layers: int
    max_context: int
    repository: str
    license: str
    dtype: str


class PresetsReport(Document):
    """All presets, family by family, each from its smallest model on."""

    event: Literal["presets"] = "presets"
    version: Literal[1] = 1
    presets: list[PresetEntry]
