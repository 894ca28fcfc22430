"""What the tests of model folders do with networks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import mila
from mila import BuildContext, Component, Position, RuntimeMode, TrainingStep
from mila.components import SoftmaxCrossEntropy
from mila.core.pieces import PieceMap
from mila.kernels.signatures import Array
from mila.models import LanguageModel, read_model_folder
from mila.models.hugging_face.folder import ARCHITECTURES
from mila.serialization import open_tensors, save_tensors
from mila.training import AdamW
from tests.models.folder_cases import GOLDEN, SHAPE

B, T = SHAPE
Tensors = dict[str, Array]


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


def gradients(step: TrainingStep, ids: Array, targets: Array) -> dict[str, Array]:
    """The gradients of the loss, by the names of the parameters."""
    step.forward(ids, targets)
    step.backward(ids, targets)
    pairs = zip(step.get_parameter_names(), step.get_gradients(), strict=True)
    return {name: gradient for name, gradient in pairs if gradient is not None}


def stored_pieces(network: Component[Any], model_type: str) -> PieceMap:
    """How ``transformers`` calls the parameters of a network."""
    return ARCHITECTURES[model_type].names.canonical(network)


def contents(network: LanguageModel[Any]) -> dict[str, bytes]:
    """The bytes of all parameters."""
    names, arrays = network.get_parameter_names(), network.get_parameters()
    return {name: array.tobytes() for name, array in zip(names, arrays, strict=True)}


def stored(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Dtype and bytes of all tensors of a folder, by their names without the prefix."""
    with open_tensors(folder) as source:
        return {
            re.sub(r"^(transformer|model)\.", "", name): (entry.dtype_name, source.read(name).tobytes())
            for name, entry in source.tensors.items()
        }


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference, relative to the largest magnitude of ``expected``."""
    assert actual.shape == expected.shape
    return float(np.max(np.abs(actual.astype(np.float64) - expected)) / np.max(np.abs(expected)))


# ---------------------------------------------------------------------- golden folders


def edited(folder: Path, name: str, edit: Callable[[Tensors], Any] | None = None, **fields: Any) -> Path:
    """A copy of a golden folder with other tensors, in one file, or other fields in its config."""
    shutil.copytree(GOLDEN / name, folder)
    if edit is not None:
        with open_tensors(folder) as source:
            tensors = {each: source.read(each).copy() for each in source.tensors}
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        edit(tensors)
        save_tensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def expected_logits(name: str) -> tuple[Array, Array]:
    """The ids and logits of a golden folder."""
    expected = load_file(GOLDEN / f"{name}.safetensors")
    return expected["ids"], expected["logits"]


def requires_equal_logits(folder: Path, name: str, **options: Any) -> LanguageModel[Any]:
    """The network of a folder, which computes what a golden folder's does."""
    network = load(folder, **options)
    ids, logits = expected_logits(name)
    assert relative_error(forward(network, ids), logits) <= 1e-5
    return network


def notes_of(network: LanguageModel[Any]) -> str:
    """What loading told."""
    assert network.pretrained is not None
    return "; ".join(network.pretrained.report.notes)
