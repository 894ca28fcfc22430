"""What differs between two configs: field by field, and in what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mila.errors import MilaError
from mila.models.hugging_face.folder import ARCHITECTURES
from mila.models.language_model import LanguageModelConfig
from mila.planning.comparison_report import FieldComparison
from mila.planning.stored_content import StoredContent

#: Who wrote a config, and from where.
_BOOKKEEPING = frozenset({"_name_or_path", "name_or_path", "_commit_hash", "transformers_version"})
#: The dtype of the weights; where there are weights, theirs are compared.
_DTYPES = frozenset({"dtype", "torch_dtype"})
#: What a field says that leaves it to a default.
_UNSAID = frozenset({None, "null"})


def compare_fields(a: Mapping[str, Any], b: Mapping[str, Any], *, counts: bool) -> list[FieldComparison]:
    """Fields of two objects that differ, those of objects inside them with dots."""
    flat = [dict(_flattened(each)) for each in (a, b)]
    return [
        FieldComparison(field=name, a=flat[0].get(name), b=flat[1].get(name), counts=counts)
        for name in {**flat[0], **flat[1]}
        if flat[0].get(name) != flat[1].get(name)
    ]


def compare_configs(a: StoredContent, b: StoredContent) -> tuple[list[FieldComparison], list[FieldComparison] | None]:
    """Compare two configs that are there.

    Returns:
        The raw fields that differ, and those of the configs that Mila makes of them, or ``None`` where it makes none.
        A raw field that one side lacks, or leaves null, does not count where Mila makes the same of both: the other
        side spells out a default.
    """
    meanings = [_meaning(each) for each in (a, b)]
    effective = None
    if meanings[0] is not None and meanings[1] is not None:
        effective = compare_fields(meanings[0], meanings[1], counts=True)
    free = _BOOKKEEPING | _DTYPES if a.tensors and b.tensors else _BOOKKEEPING
    raw = []
    for found in compare_fields(a.config or {}, b.config or {}, counts=True):
        is_default = not _UNSAID.isdisjoint((found.a, found.b)) and effective == []
        raw.append(found.model_copy(update={"counts": found.field not in free and not is_default}))
    return raw, effective


def _flattened(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            fields += _flattened(item, f"{prefix}{key}.")
        else:
            fields.append((f"{prefix}{key}", json.dumps(item, sort_keys=True, ensure_ascii=False)))
    return fields


def _meaning(content: StoredContent) -> dict[str, Any] | None:
    """The fields of Mila's config, those that others imply spelled out."""
    raw, file = content.config, content.config_file
    model_type = None if raw is None else raw.get("model_type")
    if raw is None or file is None or not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        return None
    try:
        config = ARCHITECTURES[model_type].interpret(raw, file, {}).config
    except MilaError:
        return None
    return {"class": type(config).__name__, **json.loads(config.model_dump_json()), **_implied(config)}


def _implied(config: LanguageModelConfig) -> dict[str, int]:
    """Sizes that a config leaves to others."""
    sizes = {
        "hidden_dim": 4 * config.embedding_dim,
        "num_kv_heads": config.num_heads,
        "head_dim": config.embedding_dim // config.num_heads,
    }
    return {name: size for name, size in sizes.items() if getattr(config, name, 0) is None}
