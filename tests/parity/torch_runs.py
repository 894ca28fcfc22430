"""Runs of a case's model in PyTorch: one forward and backward, and steps of AdamW."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from mila.kernels.signatures import Array
from tests.parity.model_cases import SCHEDULE, STEPS, ModelCase
from tests.parity.torch_models import (
    Module,
    Tensor,
    clip_gradients,
    cross_entropy,
    decay_groups,
    load_parameters,
    mila_parameters,
    torch_model,
)


def build_torch_model(case: ModelCase, dtype: str, parameters: Mapping[str, Array]) -> Module:
    """The PyTorch model of a case with the given parameters."""
    model = torch_model(case.config)
    model.to(getattr(torch, dtype))
    load_parameters(model, parameters)
    return model


def new_optimizer(case: ModelCase, model: Module) -> Tensor:
    """``torch.optim.AdamW`` with Mila's default decay groups, or decay on everything where the case says so."""
    config = case.optimizer
    groups = decay_groups(model, config.weight_decay)
    if config.decay_everything:
        groups = [{"params": list(model.parameters()), "weight_decay": config.weight_decay}]
    return torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.epsilon)


def run_torch_model(
    case: ModelCase, dtype: str, parameters: Mapping[str, Array], tokens: Mapping[str, Array]
) -> dict[str, Array]:
    """Logits, loss and gradients of the first batch; losses, gradient norms and parameters of :data:`STEPS` steps."""
    model = build_torch_model(case, dtype, parameters)
    optimizer = new_optimizer(case, model)
    results: dict[str, Array] = {}
    losses, norms = [], []
    for step in range(STEPS):
        ids, targets = (torch.from_numpy(tokens[name][step]).long() for name in ("ids", "targets"))
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids)
        loss = cross_entropy(logits, targets, case.ignore_index)
        loss.backward()
        if step == 0:
            results["logits"] = logits.detach().numpy().copy()
            for name, parameter in mila_parameters(model).items():
                results[f"gradient.{name}"] = parameter.grad.numpy().copy()
        losses.append(loss.item())
        norms.append(clip_gradients(model, case.optimizer.maximum_norm))
        for group in optimizer.param_groups:
            group["lr"] = SCHEDULE.learning_rate(step)
        optimizer.step()
    results["losses"] = np.array(losses, dtype)
    results["norms"] = np.array(norms)
    for name, parameter in mila_parameters(model).items():
        results[f"trained.{name}"] = parameter.detach().numpy().copy()
    return results
