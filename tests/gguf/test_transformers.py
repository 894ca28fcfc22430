"""Models of transformers, written with the gguf package in every type, imported, and opened by transformers again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.models.gguf_import import import_gguf
from tests.gguf.gguf_bytes import Array, file_parts_with_gguf
from tests.gguf.tiny_models import V, gpt2_model, rotary_model

pytestmark = pytest.mark.parity
