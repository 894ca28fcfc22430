"""Devices: their identifiers and their execution contexts."""

from mila.devices.device_id import DeviceId, DeviceType
from mila.devices.execution_context import ExecutionContext, check_seed, kernels_to_plan_with

__all__ = ["DeviceId", "DeviceType", "ExecutionContext", "check_seed", "kernels_to_plan_with"]
