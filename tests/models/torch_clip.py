"""CLIP folders made and saved by ``transformers``, and what its models compute."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from mila.kernels.signatures import Array
from tests.models.clip_cases import ClipCase
from tests.models.torch_folders import quiet

#: Modules and tensors; PyTorch counts as untyped, whether it is installed or not.
Model = Any
#: Of a whole model; that of its text config is another one, which means nothing there.
WHOLE_PROJECTION = 7
_VISION = {
    "hidden_size": 8,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 4,
    "patch_size": 2,
}


def new_clip_model(case: ClipCase) -> Model:
    """The model of a case with random weights, each a number of the case's dtype, held in float32."""
    torch.manual_seed(case.seed)
    with quiet():
        config = transformers.CLIPTextConfig(**case.config)
        if case.model == "CLIPModel":
            vision = transformers.CLIPVisionConfig(**_VISION).to_dict()
            config = transformers.CLIPConfig(
                text_config=config.to_dict(), vision_config=vision, projection_dim=WHOLE_PROJECTION
            )
        model = getattr(transformers, case.model)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.ndim == 1 and "bias" not in name
            drawn = 0.3 * torch.randn(parameter.shape) + (1.0 if is_norm else 0.0)
            parameter.copy_(drawn.to(getattr(torch, case.dtype)))
    return model


def save_clip_folder(case: ClipCase, model: Model, folder: Path) -> None:
    """Save a model as the case says; the files are written by ``transformers``."""
    saved = copy.deepcopy(model).to(getattr(torch, case.dtype))
    with quiet():
        saved.save_pretrained(folder, max_shard_size="2KB" if case.shards else "5GB")


def outputs_of(model: Model, ids: Array, mask: Array | None = None) -> dict[str, Array]:
    """Hidden states, pooled and, where there is a projection, projected embeddings of the text encoder."""
    with torch.no_grad():
        return {name: tensor.numpy().copy() for name, tensor in _outputs(model, ids, mask).items()}


def clip_gradients_of(model: Model, ids: Array, weights: dict[str, Array]) -> dict[str, Array]:
    """Gradients of the sum of all outputs, each times its weights, by the model's names.

    In float64: in float32 the gradients of the norms at the bottom of a model are themselves off by more than 1e-5.
    """
    exact = copy.deepcopy(model).double()
    found = _outputs(exact, ids, None)
    sum((found[name] * torch.from_numpy(weight).double()).sum() for name, weight in weights.items()).backward()
    named = {name: parameter.grad for name, parameter in exact.named_parameters() if parameter.grad is not None}
    return {name: gradient.numpy() for name, gradient in named.items()}


def weights_of(case: ClipCase, outputs: dict[str, Array]) -> dict[str, Array]:
    """The gradients of the outputs: drawn numbers of their shapes."""
    generator = np.random.default_rng(case.seed)
    return {name: generator.standard_normal(array.shape).astype(np.float32) for name, array in outputs.items()}


def load_clip_model(folder: Path) -> tuple[Model, dict[str, Any]]:
    """The model that ``transformers`` makes of a folder, in float32, and what it says about the loading."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    with quiet():
        model, report = getattr(transformers, name).from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
        )
    return model.eval(), report


def _outputs(model: Model, ids: Array, mask: Array | None) -> dict[str, Any]:
    text: Model = getattr(model, "text_model", model)
    given = {"input_ids": torch.from_numpy(ids)}
    if mask is not None:
        given["attention_mask"] = torch.from_numpy(mask)
    made = text(**given)
    found = {"last_hidden_states": made.last_hidden_state, "pooled": made.pooler_output}
    if hasattr(model, "text_projection"):
        found["embeds"] = model.text_projection(made.pooler_output)
    return found
