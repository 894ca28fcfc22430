"""The one list of cases that all promises are tested over."""

from __future__ import annotations

import itertools

from mila.core import RuntimeMode
from tests.promises.case import TRAINING, Case, Refused
from tests.promises.composite_cases import COMPOSITE_CASES
from tests.promises.leaf_cases import LEAF_CASES
from tests.promises.operator_cases_arithmetic import ARITHMETIC_CASES, ARITHMETIC_REFUSALS
from tests.promises.operator_cases_shapes import SHAPE_CASES, SHAPE_REFUSALS
from tests.promises.refused_cases import REFUSED as OTHER_REFUSALS
from tests.promises.structures import STRUCTURES

DTYPES = ("float32", "float64")
CASES: list[Case] = [*LEAF_CASES, *STRUCTURES, *COMPOSITE_CASES, *SHAPE_CASES, *ARITHMETIC_CASES]
REFUSED: list[Refused] = [*OTHER_REFUSALS, *SHAPE_REFUSALS, *ARITHMETIC_REFUSALS]
TRAINED: list[Case] = [case for case in CASES if TRAINING in case.modes]
BUILDS: list[tuple[Case, str, RuntimeMode]] = [
    (case, dtype, mode) for case, dtype in itertools.product(CASES, DTYPES) for mode in case.modes
]

__all__ = ["BUILDS", "CASES", "DTYPES", "REFUSED", "TRAINED", "Case", "Refused"]
