"""Published models by short names: what their publishers' ``config.json`` says, with where each figure is from."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mila.planning.interpreted import target_of
from mila.planning.report import TargetKind
from mila.planning.target import Reading, Target


class Preset(BaseModel):
    """A published model.

    Attributes:
        name: how it is named here.
        aliases: shorter names.
        repository: where it is published: the owner and the name on the Hugging Face hub.
        license: that of the weights, by the name that the publisher gives it.
        parameters: how many it has, tied ones once.
        dtype: of the published safetensors.
        total_size: bytes of the weights that the publisher's index names; ``None`` where there is no index, because
            the weights are one file, or where it is not known.
        file_size: bytes of the file, its header included, where the weights are one file and that is known.
        extra_bytes: bytes of the published weights that are no parameters, where their size is known.
        extra: what these are.
        stored_elements: how many numbers the published safetensors hold, as the hub counts them, where that is known.
        size_source: where the sizes are from; why there is none.
        config: the fields of the publisher's ``config.json`` that say what is computed.
        config_source: where they are from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    aliases: list[str]
    repository: str
    license: str
    parameters: int
    dtype: str
    total_size: int | None
    file_size: int | None
    extra_bytes: int
    extra: str | None
    stored_elements: int | None
    size_source: str
    config: dict[str, Any]
    config_source: str

    @property
    def url(self) -> str:
        """Its page."""
        return f"https://huggingface.co/{self.repository}"


@functools.cache
def presets() -> dict[str, Preset]:
    """All presets by name, family by family, each from its smallest model on."""
    folder = resources.files(__name__)
    found = []
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.name.endswith(".json"):
            found += [Preset(**fields) for fields in json.loads(each.read_text("utf-8"))]
    return {each.name: each for each in found}


def preset_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(presets())


def find_preset(name: str) -> Preset | None:
    """The preset of a name or an alias, in small or capital letters; ``None`` where there is none."""
    plain = name.lower()
    return next((each for each in presets().values() if plain == each.name or plain in each.aliases), None)


@dataclass(frozen=True)
class PresetRow:
    """A preset in a table.

    Attributes:
        preset: what is recorded of it.
        model_type: the architecture, as ``config.json`` calls it.
        layers: its blocks.
        max_context: the most positions that it allows.
    """

    preset: Preset
    model_type: str
    layers: int
    max_context: int


def preset_rows() -> list[PresetRow]:
    """Every preset, in the order of :func:`preset_names`."""
    rows = []
    for name, preset in presets().items():
        target = read_preset(Reading(name, TargetKind.PRESET, name), preset)
        rows.append(PresetRow(preset, target.model_type, target.config.num_layers, target.config.max_seq_len))
    return rows


def read_preset(reading: Reading, preset: Preset) -> Target:
    """The target of a preset; ``reading`` says how it was named."""
    published = preset.file_size if preset.total_size is None else preset.total_size
    size = "weights" if published is None else f"{published:,} bytes"
    note = f"the config is that of {preset.url} ({preset.license}), which publishes {size} of {preset.dtype}"
    reading = replace(reading, kind=TargetKind.PRESET, name=preset.name)
    return target_of(reading, Path(f"preset {preset.name}"), preset.config, notes=(note,))
