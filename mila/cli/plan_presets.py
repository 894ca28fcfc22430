"""The presets, as ``mila plan --list-presets`` prints them."""

from __future__ import annotations

from mila.memory.format import format_table
from mila.planning.presets import preset_rows
from mila.planning.presets_report import PresetEntry, PresetsReport


def presets_table() -> str:
    """A row for every preset."""
    rows = [
        (each.name, f"{each.parameters:,}", f"{each.layers:,}", f"{each.max_context:,}", each.repository)
        for each in presets_report().presets
    ]
    return format_table(("preset", "parameters", "layers", "context", "published as"), rows, right=(1, 2, 3))


def presets_report() -> PresetsReport:
    """All presets, family by family."""
    entries = [
        PresetEntry(
            name=row.preset.name,
            aliases=row.preset.aliases,
            model_type=row.model_type,
            parameters=row.preset.parameters,
            layers=row.layers,
            max_context=row.max_context,
            repository=row.preset.repository,
            license=row.preset.license,
            dtype=row.preset.dtype,
        )
        for row in preset_rows()
    ]
    return PresetsReport(presets=entries)
