"""Will it fit? Plans of models that nobody has downloaded, on machines that nobody owns yet."""

from mila.planning.planner import plan
from mila.planning.report import Failure, PlanReport, SweepReport
from mila.planning.request import Mode, OptimizerKind, PlanRequest
from mila.planning.target import StoredWeights, Target
from mila.planning.targets import read_target

__all__ = [
    "Failure",
    "Mode",
    "OptimizerKind",
    "PlanReport",
    "PlanRequest",
    "StoredWeights",
    "SweepReport",
    "Target",
    "plan",
    "read_target",
]
