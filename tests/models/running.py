"""What the tests of model folders do with networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import mila
from mila import BuildContext, Position, RuntimeMode, TrainingStep
from mila.components import SoftmaxCrossEntropy
from mila.core.pieces import PieceMap
from mila.kernels.signatures import Array
from mila.models import LanguageModel, read_model_folder
from mila.models.hugging_face.folder import ARCHITECTURES
from mila.serialization import open_tensors
from mila.training import AdamW
from tests.models.folder_cases import SHAPE

B, T = SHAPE


def load(folder: Path, **options: Any) -> LanguageModel[Any]:
    """The network of a folder for the ids of the tests, with logits at every position."""
    return mila.from_pretrained(folder, **({"context_length": T, "batch_size": B, "all_logits": True} | options))


def forward(network: LanguageModel[Any], ids: Array) -> Array:
    """All logits, in one call."""
    logits: Array = network.forward(ids).copy()
    return logits


def decode(network: LanguageModel[Any], ids: Array) -> Array:
    """All logits, one position at a time."""
    steps = [network.forward(ids[:, t : t + 1].copy(), position=Position(t, 1)).copy() for t in range(ids.shape[1])]
    return np.concatenate(steps, axis=1)


def training_step(folder: Path) -> TrainingStep:
    """A training step of a folder's network, built and loaded."""
    network = read_model_folder(folder, dropout=0.0).network()
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW(), device="cpu")
    step.build(BuildContext(SHAPE, RuntimeMode.TRAINING, initialize_parameters=False))
    mila.load_weights(step, folder, dropout=0.0)
    return step


def stored_pieces(network: LanguageModel[Any], model_type: str) -> PieceMap:
    """How ``transformers`` calls the parameters of a network."""
    return ARCHITECTURES[model_type].names.canonical(network)


def contents(network: LanguageModel[Any]) -> dict[str, bytes]:
    """The bytes of all parameters."""
    names, arrays = network.get_parameter_names(), network.get_parameters()
    return {name: array.tobytes() for name, array in zip(names, arrays, strict=True)}


def stored(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Dtype and bytes of all tensors of a folder."""
    with open_tensors(folder) as source:
        return {name: (entry.dtype_name, source.read(name).tobytes()) for name, entry in source.tensors.items()}


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference, relative to the largest magnitude of ``expected``."""
    assert actual.shape == expected.shape
    return float(np.max(np.abs(actual.astype(np.float64) - expected)) / np.max(np.abs(expected)))
