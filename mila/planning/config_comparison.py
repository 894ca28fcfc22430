"""What differs between two configs: field by field, and in what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mila.errors import MilaError
from mila.planning.comparison_report import FieldComparison
from mila.planning.inspection_report import ContentKind
from mila.planning.interpreted import meaning_of
from mila.planning.stored_content import StoredContent
from mila.planning.target import PlannedConfig

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


def compare_configs(
    a: StoredContent, b: StoredContent
) -> tuple[list[FieldComparison], list[FieldComparison] | None, list[str]]:
    """Compare two configs that are there.

    Returns:
        The raw fields that differ; those of the configs that Mila makes of them, or ``None`` where it makes none; and
        why it makes none, where fields differ.
        A raw field that one side lacks, or leaves null, does not count where Mila makes the same of both: the other
        side spells out a default.
    """
    one, other = _meaning(a), _meaning(b)
    effective = None
    if not isinstance(one, str) and not isinstance(other, str):
        effective = compare_fields(one, other, counts=True)
    free = _BOOKKEEPING | _DTYPES if a.tensors and b.tensors else _BOOKKEEPING
    raw = []
    for found in compare_fields(a.config or {}, b.config or {}, counts=True):
        is_default = not _UNSAID.isdisjoint((found.a, found.b)) and effective == []
        raw.append(found.model_copy(update={"counts": found.field not in free and not is_default}))
    are_archives = a.kind is b.kind is ContentKind.ARCHIVE  # with configs that say what they mean
    reasons = [] if are_archives or not raw else [("A", one), ("B", other)]
    notes = [
        f"what the configs mean to Mila was not compared, because of {letter}: {reason}"
        for letter, reason in reasons
        if isinstance(reason, str)
    ]
    return raw, effective, notes


def _flattened(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            fields += _flattened(item, f"{prefix}{key}.")
        else:
            fields.append((f"{prefix}{key}", json.dumps(item, sort_keys=True, ensure_ascii=False)))
    return fields


def _meaning(content: StoredContent) -> dict[str, Any] | str:
    """The fields of Mila's config, those that others imply spelled out; or why there is none."""
    if content.config is None or content.config_file is None:
        return "no config"
    if content.kind is ContentKind.ARCHIVE:
        return "an archive has a config of Mila's own"
    try:
        config = meaning_of(content.config_file, content.config)
    except MilaError as error:
        return content.words_of(error)
    return {"class": type(config).__name__, **json.loads(config.model_dump_json()), **_implied(config)}


def _implied(config: PlannedConfig) -> dict[str, int]:
    """Sizes that a config leaves to others."""
    sizes = {
        "hidden_dim": 4 * config.embedding_dim,
        "num_kv_heads": config.num_heads,
        "head_dim": config.embedding_dim // config.num_heads,
    }
    return {name: size for name, size in sizes.items() if getattr(config, name, 0) is None}
