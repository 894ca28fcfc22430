"""Devices: their identifiers and their execution contexts."""

from mila.devices.device import Device, address_of
from mila.devices.device_id import DeviceId, DeviceType
from mila.devices.execution_context import ExecutionContext, check_seed, host_to_plan_with, kernels_to_plan_with

__all__ = [
    "Device",
    "DeviceId",
    "DeviceType",
    "ExecutionContext",
    "address_of",
    "check_seed",
    "host_to_plan_with",
    "kernels_to_plan_with",
]
