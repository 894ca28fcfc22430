"""Will it fit? Plans of models that nobody has downloaded, on machines that nobody owns yet."""

from mila.planning.comparison import compare
from mila.planning.comparison_report import ComparisonReport
from mila.planning.inspection import inspect
from mila.planning.inspection_report import InspectionReport
from mila.planning.planner import plan
from mila.planning.report import Failure, PlanReport, SweepReport
from mila.planning.request import Mode, OptimizerKind, PlanRequest
from mila.planning.target import StoredWeights, Target
from mila.planning.targets import read_target

__all__ = [
    "ComparisonReport",
    "Failure",
    "InspectionReport",
    "Mode",
    "OptimizerKind",
    "PlanReport",
    "PlanRequest",
    "StoredWeights",
    "SweepReport",
    "Target",
    "compare",
    "inspect",
    "plan",
    "read_target",
]
