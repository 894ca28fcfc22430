"""What a plan takes for granted, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mila.devices import DeviceId, DeviceType
from mila.memory import MemoryPlan
from mila.memory.plan import PERSISTENT
from mila.models import GptConfig, LanguageModelConfig, LlamaConfig
from mila.planning.building import HALF_PRECISION
from mila.planning.elsewhere import elsewhere_of, unknown_labels
from mila.planning.report import Choices
from mila.planning.request import Mode, OptimizerKind, PlanRequest
from mila.planning.target import Target

_LOADING = "Loading converts weights piece by piece, without a second copy of them."


def assumptions_of(target: Target, request: PlanRequest, choices: Choices, plan: MemoryPlan) -> list[str]:
    """Every choice that was not asked for, and every property of a build that decides about its bytes."""
    mode = _of_training if choices.mode is Mode.TRAINING else _of_inference
    if target.is_text_encoder:
        mode = _of_text_encoder
    return [
        *_of_defaults(target, request, choices),
        *_of_dtype(target, request, choices),
        *mode(target, choices, plan),
        *_of_device(choices),
    ]


def _of_defaults(target: Target, request: PlanRequest, choices: Choices) -> Iterator[str]:
    if request.context is None:
        yield f"The context is all {choices.context:,} positions that the model allows, as none was asked for."
    if isinstance(target.config, LanguageModelConfig) and target.config.tie_word_embeddings:
        yield "The head computes with the token table, which is counted once."


def _of_dtype(target: Target, request: PlanRequest, choices: Choices) -> Iterator[str]:
    asked = "" if request.dtype is not None else ", the default"
    stored = "" if target.stored is None else "; the files hold " + _listed(target.stored.dtypes)
    yield f"Weights and activations are stored in {choices.dtype}{asked}{stored}."
    is_half = choices.dtype in HALF_PRECISION
    if is_half and DeviceId.parse(choices.device).type is DeviceType.CPU:
        yield "On the CPU half precision is computed in float32, step by step, in scratch that counts as workspace."


def _of_inference(target: Target, choices: Choices, plan: MemoryPlan) -> Iterator[str]:
    cache = [b for b in plan.buffers if b.arena == PERSISTENT and not b.is_table]
    if cache:
        rows = f"each of {choices.batch:,} sequences" if choices.batch > 1 else "one sequence"
        dtypes = _listed(dict.fromkeys(b.dtype.name for b in cache))
        yield f"The key/value cache holds {choices.context:,} positions of {rows}, in {dtypes}."
    config = target.config
    if isinstance(config, LlamaConfig) and config.sliding_window is not None:
        layers = config.num_layers if config.sliding_layers is None else len(config.sliding_layers)
        yield (
            f"In {layers:,} of {config.num_layers:,} layers a position sees {config.sliding_window:,} positions, and "
            "the cache keeps no more than these and one call's."
        )
    yield f"A call takes at most {choices.prefill:,} positions of each sequence; longer prompts go in several calls."
    yield "Logits are computed at the last position of a call only."
    yield _LOADING
    yield "Text, token ids and the scratch of sampling are not counted; they are small."


def _of_training(target: Target, choices: Choices, plan: MemoryPlan) -> Iterator[str]:
    yield from _of_updates(choices)
    yield "Logits are computed at every position."
    if isinstance(target.config, GptConfig):
        yield f"Dropout is {target.config.dropout:g}."


def _of_text_encoder(target: Target, choices: Choices, plan: MemoryPlan) -> Iterator[str]:
    yield f"Every text is padded to {choices.context:,} tokens; there is no cache."
    yield "All hidden states are computed, those at the end of each text and, where there is one, their projection."
    if choices.mode is Mode.TRAINING:
        yield from _of_updates(choices)
        return
    yield _LOADING
    yield "Text and token ids are not counted; they are small."


def _of_updates(choices: Choices) -> Iterator[str]:
    """Of any network that is trained."""
    if choices.optimizer is OptimizerKind.ADAMW:
        dtype = "float64" if choices.dtype == "float64" else "float32"
        yield f"AdamW keeps two moments of each parameter, in {dtype}; there is no other copy of the parameters."
    else:
        yield "There are no loss and no optimizer: the network alone, with gradients of its parameters."
    yield f"Gradients of parameters are stored in {choices.dtype}."
    yield "Activations that the backward pass reads are kept, none is computed again."
    parts = choices.accumulate or 1
    if parts > 1:
        yield f"An update adds up the gradients of {parts:,} passes in place, which takes no more memory than one."
    yield "Training data and batches are not counted: a Trainer plans and holds the ids and targets of one besides."


def _of_device(choices: Choices) -> Iterator[str]:
    device = DeviceId.parse(choices.device)
    if device.type is DeviceType.CPU:
        yield "The process is one of its own, and every page of its buffers is resident."
        return
    yield f"Nothing else runs on {device}."
    unknown = unknown_labels(elsewhere_of(device, choices.mode))
    if unknown:
        yield f"Not measured, and not in the verdict: {', '.join(unknown)}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
