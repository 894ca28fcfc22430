"""The 70 networks of ``tests/cases/network_cases.jsonl``, all of them of operators that Mila has; how they resolve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mila
from mila.network_language import ResolvedNetwork

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "cases" / "network_cases.jsonl").read_text("utf-8").splitlines()
]
CASE_BY_ID = {case["id"]: case for case in CASES}


def resolve_case(case: dict[str, Any]) -> ResolvedNetwork:
    return mila.resolve(
        case["config"],
        input_shape=case["input_shape"],
        output_shape=case["output_shape"],
        dtype=case["dtype"] or "float32",
        input_dtype=case["input_dtype"],
    )
