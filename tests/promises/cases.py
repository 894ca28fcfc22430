"""The one list of cases that all promises are tested over."""

from __future__ import annotations

from mila.core import RuntimeMode
from tests.promises.case import TRAINING, Case, Refused
from tests.promises.composite_cases import COMPOSITE_CASES
from tests.promises.leaf_cases import LEAF_CASES
from tests.promises.network_cases import NETWORK_CASES
from tests.promises.operator_cases_arithmetic import ARITHMETIC_CASES, ARITHMETIC_REFUSALS
from tests.promises.operator_cases_blocks import BLOCK_CASES, BLOCK_REFUSALS
from tests.promises.operator_cases_experts import EXPERT_CASES, EXPERT_REFUSALS
from tests.promises.operator_cases_shapes import SHAPE_CASES, SHAPE_REFUSALS
from tests.promises.refused_cases import REFUSED as OTHER_REFUSALS
from tests.promises.structures import STRUCTURES

DTYPES = ("float32", "float64")
CASES: list[Case] = [
    *LEAF_CASES,
    *STRUCTURES,
    *COMPOSITE_CASES,
    *SHAPE_CASES,
    *ARITHMETIC_CASES,
    *BLOCK_CASES,
    *EXPERT_CASES,
    *NETWORK_CASES,
]
REFUSED: list[Refused] = [*OTHER_REFUSALS, *SHAPE_REFUSALS, *ARITHMETIC_REFUSALS, *BLOCK_REFUSALS, *EXPERT_REFUSALS]
TRAINED: list[Case] = [case for case in CASES if TRAINING in case.modes]
#: Sizes and lifetimes of float64 are those of float32 but for a factor: a part of the cases is enough.
BUILDS: list[tuple[Case, str, RuntimeMode]] = [
    *((case, "float32", mode) for case in CASES for mode in case.modes),
    *((case, "float64", mode) for case in CASES[::3] for mode in case.modes),
]
#: Networks that are stored in less than they are computed in; and some of them, for what takes long.
HALF_BUILDS: list[tuple[Case, str, RuntimeMode]] = [(case, "bfloat16", mode) for case in CASES for mode in case.modes]
SOME_HALF_BUILDS = HALF_BUILDS[::3]

__all__ = ["BUILDS", "CASES", "DTYPES", "HALF_BUILDS", "REFUSED", "SOME_HALF_BUILDS", "TRAINED", "Case", "Refused"]
