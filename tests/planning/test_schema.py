"""The published schema is that of the models, and what is published can be read again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mila.planning import Failure, PlanRequest, plan
from mila.planning.schema import read_document, schema_text
from mila.planning.sweep import sweep

SCHEMA = Path(__file__).parents[2] / "specs" / "plan.schema.json"


def test_the_checked_in_schema_is_that_of_the_models() -> None:
    assert SCHEMA.read_text("utf-8") == schema_text(), "run python -m mila.planning.schema > specs/plan.schema.json"


def test_the_module_prints_it() -> None:
    command = [sys.executable, "-W", "error", "-m", "mila.planning.schema"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == schema_text()


def test_documents_are_read_again() -> None:
    for document in (
        plan("gpt2", PlanRequest(budget=1 << 29)),
        sweep("gpt2", None, {"context": [8, 2000]}),
        Failure(target="gpt2", message="no", exit_code=2),
    ):
        assert read_document(document.model_dump_json()) == document


def test_every_field_of_every_document_is_in_the_schema() -> None:
    definitions: dict[str, Any] = json.loads(schema_text())["$defs"]
    report = json.loads(plan("gpt2", search=False).model_dump_json())
    assert set(report) == set(definitions["PlanReport"]["properties"])
    assert set(report["tree"][0]) == set(definitions["TreeRow"]["properties"])
    for name in ("PlanReport", "SweepReport", "Failure"):
        assert definitions[name]["additionalProperties"] is False


def test_what_is_no_document_is_refused() -> None:
    for text in ("{}", '{"event": "plan"}', '{"event": "other"}', '{"event": "error", "target": "x"}'):
        with pytest.raises(ValidationError):
            read_document(text)
