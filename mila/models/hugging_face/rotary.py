"""Rotary positions in ``config.json``, in both dialects.

Until version 4 of ``transformers``, ``rope_theta`` and ``rope_scaling`` stand at the top; since version 5 both are in
``rope_parameters``, which may be nested by layer type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mila.components.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling
from mila.models.hugging_face.fields import INTEGER, NUMBER, FieldReader, Kind, describe_validation, short

#: Of models whose files were written without ``rope_theta``, before there was a choice.
ORIGINAL_THETA = 10000.0
#: Further keys of each kind of scaling.
_KEYS: Mapping[str, tuple[tuple[str, Kind], ...]] = {
    "default": (),
    "linear": (("factor", NUMBER),),
    "llama3": (
        ("factor", NUMBER),
        ("low_freq_factor", NUMBER),
        ("high_freq_factor", NUMBER),
        ("original_max_position_embeddings", INTEGER),
    ),
}
#: What the file calls the fields of a scaling.
_FILE_KEYS = {
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_max_seq_len": "original_max_position_embeddings",
}
_KIND = Kind("the name of a rotary type", (str,))
_COMMON = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True)
class _Rotary:
    theta: float | None
    scaling: RopeScaling | None


def read_rotary(reader: FieldReader, *, may_lack_theta: bool = False) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` of a :class:`~mila.models.LlamaConfig`.

    Args:
        reader: where the fields and their problems are.
        may_lack_theta: the model type has files from before there was a ``rope_theta``.
    """
    problems = len(reader.problems)
    reader.require("partial_rotary_factor", (1, None))
    top = reader.read("rope_theta", NUMBER, None)
    found = {
        key: _read_parameters(reader, key, reader.take(key))
        for key in ("rope_scaling", "rope_parameters")
        if reader.take(key) is not None
    }
    thetas = {"rope_theta": top} | {f"{key}.rope_theta": rotary.theta for key, rotary in found.items()}
    thetas = {key: theta for key, theta in thetas.items() if theta is not None}
    if len(set(thetas.values())) > 1:
        reader.problems.append("two values: " + ", ".join(f"{key} = {theta}" for key, theta in thetas.items()))
    scalings = {key: rotary.scaling for key, rotary in found.items()}
    if len(scalings) == 2 and scalings["rope_scaling"] != scalings["rope_parameters"]:
        reader.problems.append("rope_scaling and rope_parameters contradict each other; remove one of them")
    if not thetas and len(reader.problems) == problems:
        if may_lack_theta and "rope_parameters" not in found:
            reader.notes.append(f"no rope_theta, as in files from before there was a choice: {ORIGINAL_THETA}")
        else:
            reader.problems.append("missing rope_theta: expected a number, at the top or in rope_parameters")
    return {
        "rope_theta": next(iter(thetas.values()), ORIGINAL_THETA),
        "rope_scaling": next(iter(scalings.values()), None),
    }


def write_rotary(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The fields of both, in the dialect that versions 4 and 5 read."""
    written: dict[str, Any] | None = None
    if isinstance(scaling, LinearScaling):
        written = {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, Llama3Scaling):
        written = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_max_seq_len,
        }
    return {"rope_theta": theta, "rope_scaling": written}


def _read_parameters(reader: FieldReader, where: str, value: Any) -> _Rotary:
    """One dictionary of rotary parameters, or one per layer type that all say the same."""
    if not isinstance(value, dict):
        reader.problems.append(f"{where}: expected an object, got {short(value)}")
        return _Rotary(None, None)
    nested = [each for each in value.values() if isinstance(each, dict)]
    if not nested:
        return _read_flat(reader, where, value)
    if len(nested) != len(value) or any(each != nested[0] for each in nested):
        reader.problems.append(f"{where}: expected the same parameters for all layer types, got {short(value)}")
        return _Rotary(None, None)
    return _read_flat(reader, f"{where}.{next(iter(value))}", nested[0])


def _read_flat(reader: FieldReader, where: str, value: dict[str, Any]) -> _Rotary:
    own = FieldReader(value)
    said = {key: own.read(key, _KIND, None) for key in ("type", "rope_type")}
    kinds = sorted({kind for kind in said.values() if kind is not None})
    own.require("partial_rotary_factor", (1, None))
    theta = own.read("rope_theta", NUMBER, None)
    kind = kinds[0] if kinds else "default"
    if len(kinds) > 1:
        own.problems.append(f"type and rope_type contradict each other: {', '.join(kinds)}")
    elif kind not in _KEYS:
        own.problems.append(f"expected one of the rotary types {', '.join(_KEYS)}, got {kind!r}")
    scaling = None
    if not own.problems:
        numbers = {key: own.read(key, expected) for key, expected in _KEYS[kind]}
        unknown = [key for key in value if value[key] is not None and key not in _COMMON and key not in numbers]
        own.problems += [f"{key} = {short(value[key])} has no meaning for type {kind!r}" for key in unknown]
        if not own.problems:
            scaling = _scaling(own, kind, numbers)
    reader.problems += [f"{where}: {problem}" for problem in own.problems]
    return _Rotary(theta, scaling)


def _scaling(reader: FieldReader, kind: str, numbers: Mapping[str, Any]) -> RopeScaling | None:
    try:
        if kind == "linear":
            return LinearScaling(factor=numbers["factor"])
        if kind == "llama3":
            return Llama3Scaling(
                factor=numbers["factor"],
                low_frequency_factor=numbers["low_freq_factor"],
                high_frequency_factor=numbers["high_freq_factor"],
                original_max_seq_len=numbers["original_max_position_embeddings"],
            )
    except ValidationError as error:
        reader.problems.append(describe_validation(error, _FILE_KEYS))
    return None
