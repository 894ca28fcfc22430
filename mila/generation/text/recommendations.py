"""How a model's makers would sample from it: the rest of ``generation_config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mila.errors import CheckpointError
from mila.generation.config import GenerationConfig
from mila.generation.text.files import GENERATION_CONFIG_FILE, read_object

_WHEN_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def recommended_sampling(folder: str | Path) -> dict[str, Any]:
    """Fields of a :class:`GenerationConfig` that a model folder recommends.

    Temperature and filters count where the file says ``do_sample``, the temperature being 1 unless it is given; else
    the likeliest token is taken, as it is at temperature 0. A repetition penalty always counts.

    Raises:
        CheckpointError: the file is malformed, or a value has no meaning.
    """
    path = Path(folder) / GENERATION_CONFIG_FILE
    values = read_object(path) or {}
    fields = {name: values[name] for name in ("repetition_penalty",) if values.get(name) is not None}
    if values.get("do_sample") is True:
        fields["temperature"] = 1.0
        names = ("temperature",) if values.get("temperature") == 0 else _WHEN_SAMPLING
        fields |= {name: values[name] for name in names if values.get(name) is not None}
        if fields.get("top_k") == 0:  # no filter, as transformers writes it
            del fields["top_k"]
    try:
        GenerationConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{path}: {first['loc'][0]}: {message}, got {first['input']!r}") from None
    return fields
