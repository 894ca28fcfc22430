"""Memory: declarations, lifetimes, placement, plans and arenas."""

from mila.memory.declarations import Category, Declaration, Initializer, Lifetime, Over
from mila.memory.format import format_bytes
from mila.memory.plan import MemoryPlan, PlannedBuffer, PlanRow
from mila.memory.stats import MemoryStats
from mila.memory.storage import storage_bytes

__all__ = [
    "Category",
    "Declaration",
    "Initializer",
    "Lifetime",
    "MemoryPlan",
    "MemoryStats",
    "Over",
    "PlanRow",
    "PlannedBuffer",
    "format_bytes",
    "storage_bytes",
]
