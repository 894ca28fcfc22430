"""From a request to the unbuilt network and the context that a build would have."""

from __future__ import annotations

from typing import Any

from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, Component, RuntimeMode, TrainingStep
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError, ShapeError
from mila.memory.storage import network_dtype
from mila.models.language_model import default_prefill_size
from mila.planning.report import Choices
from mila.planning.request import Mode, OptimizerKind, PlanRequest
from mila.planning.target import Target
from mila.training import AdamW

#: What ``from_pretrained`` stores weights in unless told.
DEFAULT_DTYPE = "float32"
#: Quantization policies by name.
POLICIES: tuple[str, ...] = ()
#: Stored dtypes of two bytes.
HALF_PRECISION = ("bfloat16", "float16")
NO_POLICY = "none"


def choices_of(target: Target, request: PlanRequest) -> Choices:
    """The request with every choice made.

    Raises:
        ConfigurationError: options that do not go together, or an unknown policy.
        DTypeError: no dtype of a network.
        DeviceError: no device.
        ShapeError: more positions than the model allows, or a prefill of more than the context.
    """
    is_training = request.mode is Mode.TRAINING
    if target.is_text_encoder:
        _check_of_text_encoder(request)
    context = target.config.max_seq_len if request.context is None else request.context
    if context > target.config.max_seq_len:
        raise ShapeError(
            f"context: expected at most {target.config.max_seq_len:,} positions, which {target.name} allows, "
            f"got {context:,}"
        )
    if is_training and request.prefill is not None:
        raise ConfigurationError(f"prefill: is for inference; training takes whole sequences, got {request.prefill:,}")
    if request.prefill is not None and request.prefill > context:
        raise ShapeError(f"prefill: expected at most the context of {context:,} positions, got {request.prefill:,}")
    if not is_training and request.accumulate != 1:
        raise ConfigurationError(f"accumulate: is for training, got {request.accumulate:,} in inference")
    takes_parts = not is_training and not target.is_text_encoder
    return Choices(
        mode=request.mode,
        context=context,
        batch=request.batch,
        prefill=(request.prefill or default_prefill_size(context)) if takes_parts else None,
        dtype=network_dtype(request.dtype or DEFAULT_DTYPE).name,
        quantize=check_policy(request.quantize),
        optimizer=request.optimizer if is_training else None,
        accumulate=request.accumulate if is_training else None,
        device=str(DeviceId.parse(request.device)),
    )


def _check_of_text_encoder(request: PlanRequest) -> None:
    """Raise for what only language models have."""
    if request.prefill is not None:
        got = f"{request.prefill:,}"
        raise ConfigurationError(f"prefill: is for language models; a text encoder takes whole texts, got {got}")
    if request.mode is Mode.TRAINING and request.optimizer is not OptimizerKind.NONE:
        got = request.optimizer.value
        raise ConfigurationError(f"optimizer: expected none, as a text encoder has no loss of its own, got {got}")


def construct(target: Target, choices: Choices, context: ExecutionContext | None = None) -> Component[Any]:
    """The unbuilt network or, with an optimizer, the training step around it; nothing is allocated.

    Args:
        target: the model.
        choices: all made.
        context: the device to build on; by default one to plan with, which need not be here.

    Raises:
        DeviceError: the device's kernels do not compute the dtype.
    """
    device = ExecutionContext.to_plan_with(choices.device) if context is None else context
    network = target.make(target.config, device, network_dtype(choices.dtype))
    if choices.optimizer is not OptimizerKind.ADAMW:
        return network
    return TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())


def build_context(choices: Choices) -> BuildContext:
    """What the build is for."""
    shape = (choices.batch, choices.context)
    if choices.mode is Mode.TRAINING:
        return BuildContext(shape, RuntimeMode.TRAINING)
    return BuildContext(shape, RuntimeMode.INFERENCE, prefill_size=choices.prefill)


def check_policy(name: str | None) -> str | None:
    """The name of a quantization policy; ``None`` for none of them, :class:`ConfigurationError` for any other name."""
    if name is None or name == NO_POLICY:
        return None
    if name not in POLICIES:
        known = " or ".join((NO_POLICY, *POLICIES))
        raise ConfigurationError(
            f"quantize: expected {known}, the policies that there are for models, got {name!r:.60}"
        )
    return name
