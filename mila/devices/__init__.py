"""Devices: their identifiers and their execution contexts."""

from mila.devices.device_id import DeviceId, DeviceType
from mila.devices.execution_context import ExecutionContext

__all__ = ["DeviceId", "DeviceType", "ExecutionContext"]
