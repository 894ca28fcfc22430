"""The JSON schema of ``mila inspect --json`` and ``mila compare --json``.

``python -m mila.planning.inspection_schema > specs/inspect.schema.json`` writes it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from mila.planning.comparison_report import ComparisonReport
from mila.planning.inspection_report import InspectionReport, Refusal
from mila.planning.schema import published

#: Whatever happens, one of these is printed; ``event`` says which.
Document = Annotated[InspectionReport | ComparisonReport | Refusal, Field(discriminator="event")]


def schema_text() -> str:
    """The schema, the same bytes for the same models."""
    return published("mila inspect --json, mila compare --json", TypeAdapter(Document))


def read_document(text: str) -> InspectionReport | ComparisonReport | Refusal:
    """What was printed, checked.

    Raises:
        pydantic.ValidationError: it is no such document.
    """
    return TypeAdapter[InspectionReport | ComparisonReport | Refusal](Document).validate_json(text)


if __name__ == "__main__":
    print(schema_text(), end="")
