"""What the tests of CLIP's text encoder do with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mila import RuntimeMode
from mila.kernels.signatures import Array
from mila.models import ClipTextEncoder, read_clip_text_folder
from mila.serialization import open_tensors, save_tensors
from tests.models.clip_cases import CLIP_GOLDEN, B
from tests.models.running import relative_error

TOLERANCE = 1e-5
Tensors = dict[str, Array]


def load_clip(folder: Path, **options: Any) -> ClipTextEncoder:
    """The encoder of a folder, for the ids of the tests."""
    return read_clip_text_folder(folder).load(**({"batch_size": B} | options))


def encode(encoder: ClipTextEncoder, ids: Array) -> dict[str, Array]:
    """Copies of what it computes, without the projection where there is none."""
    return {name: array.copy() for name, array in encoder.forward(ids)._asdict().items() if array is not None}


def require_equal(found: dict[str, Array], expected: dict[str, Array], mask: Array | None = None) -> None:
    """The same outputs; of the hidden states those that ``mask`` does not leave out."""
    assert set(found) == set(expected)
    for name, array in found.items():
        kept = mask == 1 if mask is not None and name == "last_hidden_states" else ...
        assert relative_error(array[kept], expected[name][kept]) <= TOLERANCE, name


def clip_gradients(folder: Path, ids: Array, weights: dict[str, Array]) -> dict[str, Array]:
    """Gradients of the sum of the outputs, each times its weights, by the names of the parameters."""
    encoder = load_clip(folder, runtime_mode=RuntimeMode.TRAINING)
    outputs = encode(encoder, ids)
    assert not encoder.backward(ids, *(weights[name] for name in outputs)).any()
    pairs = zip(encoder.get_parameter_names(), encoder.get_gradients(), strict=True)
    return {name: gradient.copy() for name, gradient in pairs if gradient is not None}


def require_equal_gradients(own: dict[str, Array], names: dict[str, str], expected: dict[str, Array]) -> None:
    """The same gradients; ``names`` are those of ``expected`` by the encoder's own.

    The gradient of a key's bias is zero but for rounding: it is measured by the largest gradient of all.
    """
    largest = max(float(np.max(np.abs(array))) for array in expected.values())
    for name, array in own.items():
        other = expected.pop(names[name])
        if name.endswith("k_proj.bias"):
            assert np.max(np.abs(array - other)) <= TOLERANCE * largest, name
        else:
            assert relative_error(array, other) <= TOLERANCE, name
    assert not expected


def clip_contents(encoder: ClipTextEncoder) -> dict[str, bytes]:
    """The bytes of all parameters."""
    names, arrays = encoder.get_parameter_names(), encoder.get_parameters()
    return {name: array.tobytes() for name, array in zip(names, arrays, strict=True)}


def edited_clip(folder: Path, name: str, edit: Callable[[Tensors], Any] | None = None, **fields: Any) -> Path:
    """A copy of a golden folder with other tensors, or other fields in its config."""
    shutil.copytree(CLIP_GOLDEN / name, folder)
    if edit is not None:
        with open_tensors(folder) as source:
            tensors = {each: source.read(each).copy() for each in source.tensors}
        (folder / "model.safetensors").unlink()
        edit(tensors)
        save_tensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def clip_notes(encoder: ClipTextEncoder) -> str:
    """What loading told."""
    assert encoder.pretrained is not None
    return "; ".join(encoder.pretrained.report.notes)
