"""The JSON schema of what ``mila plan --json`` prints: ``python -m mila.planning.schema > specs/plan.schema.json``."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mila.planning.presets_report import PresetsReport
from mila.planning.report import Failure, PlanReport, SweepReport

#: Whatever happens, one of these is printed; ``event`` says which.
Document = Annotated[PlanReport | SweepReport | PresetsReport | Failure, Field(discriminator="event")]


def schema_text() -> str:
    """The schema, the same bytes for the same models."""
    return published("mila plan --json", TypeAdapter(Document))


def published(title: str, documents: TypeAdapter[Any]) -> str:
    """The schema of all documents that something prints, as the text of a file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **documents.json_schema(mode="serialization")}, indent=2) + "\n"


def read_document(text: str) -> PlanReport | SweepReport | PresetsReport | Failure:
    """What was printed, checked.

    Raises:
        pydantic.ValidationError: it is no such document.
    """
    return TypeAdapter[PlanReport | SweepReport | PresetsReport | Failure](Document).validate_json(text)


if __name__ == "__main__":
    print(schema_text(), end="")
