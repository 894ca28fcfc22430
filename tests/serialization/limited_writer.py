"""A program that saves where no file may grow beyond 100,000 bytes, as on a full disk, and prints the error."""

from __future__ import annotations

import resource
import sys

import numpy as np

from mila.errors import CheckpointError
from mila.serialization import save_tensors

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        save_tensors(sys.argv[1], {"a": np.zeros(1_000_000, np.float32)})
    except CheckpointError as error:
        print(error)
