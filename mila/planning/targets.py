"""From what somebody names to what can be planned."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from mila.core.loading import Progress
from mila.errors import ConfigurationError
from mila.models.arguments import check_names, check_truth
from mila.planning.name_hints import is_path, model_of_hub, near_presets
from mila.planning.presets import Preset, find_preset, preset_names, read_preset
from mila.planning.report import TargetKind
from mila.planning.target import Reading, Target
from mila.planning.target_files import kind_of, read_local
from mila.serialization import recover_folder
from mila.serialization.failures import refusals, shown
from mila.serialization.paths import checked_path

HUB_PREFIX, PRESET_PREFIX = "hf://", "preset:"


def read_target(
    spec: str | Path,
    *,
    tie_word_embeddings: bool | None = None,
    ignore_fields: Collection[str] = (),
    on_header: Progress | None = None,
) -> Target:
    """Read what is needed to plan a model: its config, and the headers of its weights where there are any.

    Args:
        spec: one of these, the first that applies:

            - ``hf://owner/name``, optionally with ``@revision``: a model of the hub;
            - ``preset:name``: one of :func:`mila.planning.presets.preset_names`;
            - a path that exists: a model folder, a config, a safetensors file or an index beside a ``config.json``,
              or a GGUF file;
            - the name of a preset without the prefix.
        tie_word_embeddings: overrides what the config says of the head.
        ignore_fields: unknown fields of the config that do not change the result.
        on_header: of a model of the hub, called with the headers of weights that were read, and with those to read.

    Raises:
        ConfigurationError: an argument that is none, a name of nothing, or a hub that cannot be asked.
        CheckpointError: what was named is malformed or incomplete, or has something that Mila does not compute.
    """
    if isinstance(spec, os.PathLike):
        spec = os.fspath(spec)
    if not isinstance(spec, str) or not spec:
        raise ConfigurationError(f"target: expected the name of a model, got {shown(spec)}")
    check_truth("tie_word_embeddings", tie_word_embeddings)
    check_names("ignore_fields", ignore_fields)
    reading = Reading(spec, TargetKind.PRESET, spec, tie_word_embeddings, ignore_fields)
    if spec.startswith(HUB_PREFIX):
        from mila.planning.hub import read_hub  # only where it is asked for

        return read_hub(replace(reading, kind=TargetKind.HUB), on_header)
    if spec.startswith(PRESET_PREFIX):
        return read_preset(reading, _preset(spec, spec.removeprefix(PRESET_PREFIX)))
    path = checked_path(spec, "target")
    recover_folder(path)
    with refusals(path, "could not be opened"):
        is_there = path.exists()
    if is_there:
        target = read_local(replace(reading, kind=kind_of(path), name=_short_name(path)), path)
        if find_preset(spec) is None:
            return target
        note = f"{spec} is both here and a preset: the one here was taken; {PRESET_PREFIX}{spec} is the other"
        return replace(target, notes=(*target.notes, note))
    return read_preset(reading, _preset(spec, spec))


def _preset(spec: str, name: str) -> Preset:
    """The preset of a name; raises :class:`ConfigurationError` with what may have been meant."""
    found = find_preset(name)
    if found is not None:
        return found
    if is_path(spec) and not spec.startswith(PRESET_PREFIX):
        repository = model_of_hub(spec)
        hint = f"; a model of the hub is {HUB_PREFIX}{repository}" if repository else ""
        raise ConfigurationError(f"{spec}: expected a file or a folder, got nothing of that name{hint}")
    near = near_presets(name)
    hint = f"did you mean {near}?" if near else f"presets are {', '.join(preset_names())}"
    expected = "a preset" if spec.startswith(PRESET_PREFIX) else "a file, a folder, a preset or hf://owner/name"
    raise ConfigurationError(f"{shown(spec)}: expected {expected}, got nothing of that name; {hint}")


def _short_name(path: Path) -> str:
    """The folder's name of a folder and of what has the usual names in it, else the file's without its ending."""
    absolute = path.absolute()
    if absolute.is_dir():
        return absolute.name or str(absolute)
    if path.name.lower() in ("config.json", "model.safetensors", "model.safetensors.index.json"):
        return absolute.parent.name or absolute.stem
    return path.stem
