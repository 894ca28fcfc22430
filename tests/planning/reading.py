"""What the tests of targets share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila import ExecutionContext
from mila.errors import MilaError, UnknownArchitectureError
from mila.models import LanguageModelConfig
from mila.planning.target import Target
from mila.planning.targets import read_target

FLOAT32 = np.dtype(np.float32)


def parameter_bytes(target: Target, dtype: np.dtype[Any] = FLOAT32) -> int:
    """Those of the network that a target makes."""
    network = target.make(target.config, ExecutionContext("cpu"), dtype)
    return network.parameter_count() * dtype.itemsize


def has_tied_head(target: Target) -> bool:
    """Whether a language model computes its head with the token table."""
    assert isinstance(target.config, LanguageModelConfig)
    return target.config.tie_word_embeddings


def refused(spec: str | Path, kind: type[MilaError], message: str | None = None, **options: Any) -> str:
    with pytest.raises(kind, match=message) as caught:
        read_target(str(spec), **options)
    assert type(caught.value) in (kind, UnknownArchitectureError)
    assert "\n" not in str(caught.value)
    return str(caught.value)
