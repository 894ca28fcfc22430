"""PyTorch beside Mila: the same arrays as tensors, and the model that is trained."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.timing import Clock, Run, median_milliseconds, torch_clock
from mila.kernels.signatures import Array
from mila.memory.storage import network_dtype

Tensor = Any


class TorchSide:
    """PyTorch on its device, with a clock."""

    def __init__(self, torch: Any, settings: Settings) -> None:
        self.torch = torch
        self.settings = settings
        self.device = settings.torch_device
        if torch.device(self.device).type == "cuda":
            torch.cuda.set_device(self.device)
        self.dtype = getattr(torch, network_dtype(settings.dtype).name)
        self.clock: Clock = torch_clock(torch, self.device, settings.flush_bytes)

    def tensor(self, array: Array) -> Tensor:
        """A NumPy array of any dtype that is stored, bit for bit."""
        if array.dtype.itemsize == 2:
            return self.torch.from_numpy(array.view(np.int16)).view(self.dtype).to(self.device)
        return self.torch.from_numpy(array).to(self.device)

    def milliseconds(self, run: Run) -> float:
        """The median time of a call."""
        return median_milliseconds(self.clock, run, self.settings.warmups, self.settings.rounds)


def find_torch(settings: Settings) -> TorchSide | str:
    """PyTorch, or why there is none on the device."""
    try:
        import torch
    except Exception as error:  # said by requirements.py
        return f"PyTorch: {type(error).__name__}: {error}"
    if torch.device(settings.torch_device).type == "cuda" and not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    return TorchSide(torch, settings)


def difference(bench: Bench, ours: Array, theirs: Tensor) -> float:
    """The largest difference of an array of Mila's device from a tensor."""
    got = bench.device.download(ours).astype(np.float32)
    expected = theirs.detach().float().cpu().numpy().reshape(got.shape)
    return float(np.max(np.abs(got - expected)))
