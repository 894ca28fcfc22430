"""Model folders made and saved by ``transformers``, and what its models compute."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub import split_torch_state_dict_into_shards

from mila.kernels.signatures import Array
from tests.models.folder_cases import SHAPE, FolderCase

#: Modules and tensors; PyTorch counts as untyped, whether it is installed or not.
Model = Any


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and the advice of ``transformers``."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def new_model(case: FolderCase) -> Model:
    """The model of a case with random weights, each a number of the case's dtype, held in float32."""
    torch.manual_seed(case.seed)
    config = transformers.AutoConfig.for_model(case.model_type, **case.fields)
    with quiet():
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.ndim == 1 and "bias" not in name
            drawn = 0.3 * torch.randn(parameter.shape) + (1.0 if is_norm else 0.0)
            parameter.copy_(drawn.to(getattr(torch, case.dtype)))
    return model


def save_folder(case: FolderCase, model: Model, folder: Path) -> None:
    """Save a model as the case says; the files are written by ``transformers``."""
    dtype = getattr(torch, case.dtype)
    saved = copy.deepcopy(model.base_model if case.bare else model).to(dtype)
    total = sum(parameter.numel() * dtype.itemsize for parameter in saved.parameters())
    size: int | str = "5GB"
    if case.shards == 3:
        candidates = range(total // 3, total, 8)
        size = next(size for size in candidates if _shard_count(saved, size) == 3)
    with quiet():
        saved.save_pretrained(folder, max_shard_size=size)
    config = json.loads((folder / "config.json").read_text())
    if case.dialect == 4:
        config = old_dialect(config)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def old_dialect(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as version 4 of ``transformers`` wrote it."""
    old = dict(config)
    old["torch_dtype"] = old.pop("dtype")
    rotary = old.pop("rope_parameters", None)
    if rotary is not None:
        scaling = {key: value for key, value in rotary.items() if key != "rope_theta"}
        old |= {"rope_theta": rotary["rope_theta"], "rope_scaling": None}
        if scaling["rope_type"] != "default":
            old["rope_scaling"] = scaling
    old.pop("layer_types", None)
    if old.get("sliding_window") is None and "use_sliding_window" in old:
        old["sliding_window"] = 4096  # not in use
    return old


def draw_ids(case: FolderCase) -> tuple[Array, Array]:
    """Ids and targets (B, T), int32."""
    ids, targets = np.random.default_rng(case.seed).integers(0, case.fields["vocab_size"], (2, *SHAPE))
    return ids.astype(np.int32), targets.astype(np.int32)


def logits_of(model: Model, ids: Array) -> Array:
    """All logits (B, T, V), float32."""
    with torch.no_grad():
        logits: Array = model(torch.from_numpy(ids).long()).logits.numpy()
    return logits


def gradients_of(model: Model, ids: Array, targets: Array) -> dict[str, Array]:
    """Gradients of the mean cross-entropy, by the model's names; a tied parameter once."""
    model.zero_grad()
    logits = model(torch.from_numpy(ids).long()).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).long().flatten()).backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


def load_model(folder: Path) -> tuple[Model, dict[str, Any]]:
    """The model that ``transformers`` makes of a folder, in float32, and what it says about the loading."""
    with quiet():
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
        )
    return model.eval(), report


def _shard_count(model: Model, size: int) -> int:
    return len(split_torch_state_dict_into_shards(model.state_dict(), max_shard_size=size).filename_to_tensors)
