"""CLIP's text encoder from model folders, and what an export of it says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from mila.core import BuildContext, LoadReport
from mila.core.context import ANY_INPUT
from mila.core.loading import LoadPlan, Progress
from mila.core.pieces import NameMap
from mila.devices import DeviceId, ExecutionContext
from mila.errors import CheckpointError, ConfigurationError
from mila.memory.storage import DType
from mila.models.clip import ClipTextEncoder
from mila.models.hugging_face.clip_config import ClipTextFolder, read_clip_text_folder
from mila.models.hugging_face.clip_names import resolve_names
from mila.models.hugging_face.folder import CONFIG_FILE
from mila.models.hugging_face.vocabulary import check_vocabulary
from mila.models.hugging_face.weights import open_weights, require_layers
from mila.models.pretrained import Pretrained
from mila.serialization import TensorSource


def load_clip_text_encoder(
    found: ClipTextFolder,
    context: BuildContext,
    *,
    length: int | None,
    device: str | DeviceId | ExecutionContext,
    dtype: DType | type[Any] | str | None,
    dropout: float | None,
    on_progress: Progress | None,
) -> ClipTextEncoder:
    """The text encoder of a folder, built and loaded; see :meth:`mila.models.ClipTextFolder.load`.

    Of ``context``, the batch and the options count; ``length`` is the tokens of a text, as many as the model takes by
    default.
    """
    _check_dropout(found, dropout, is_training=context.is_training)
    with open_weights(found.path) as source:
        require_layers(source, found.config.num_layers)
        network = found.network(length=length, device=device, dtype=dtype)
        shape = (context.input_shape[0], network.length)
        built = context.with_shapes({ANY_INPUT: shape}, {}, context.max_seq_len)
        network.plan(built)  # what the build would refuse is refused before weights are looked at
        plan = LoadPlan(network, source, _names(network, found, source))
        network.build(built)
        _finish(network, found, plan.run(on_progress))
    return network


def load_clip_weights(
    network: ClipTextEncoder,
    folder: Path | str,
    *,
    dropout: float | None,
    ignore_fields: Collection[str],
    on_progress: Progress | None,
) -> LoadReport:
    """Fill a built text encoder; see :func:`mila.models.load_weights`."""
    found = read_clip_text_folder(folder, ignore_fields=ignore_fields)
    own, read = network.text_config.model_dump(), found.config.model_dump()
    differences = [f"{name} {own[name]!r} here, {read[name]!r} there" for name in own if own[name] != read[name]]
    if differences:
        raise CheckpointError(f"{found.path}: is another model than {network.path}: " + "; ".join(differences))
    _check_dropout(found, dropout, is_training=network.is_training_mode)
    with open_weights(found.path) as source:
        plan = LoadPlan(network, source, _names(network, found, source))
        return _finish(network, found, plan.run(on_progress))


def _names(network: ClipTextEncoder, found: ClipTextFolder, source: TensorSource) -> NameMap:
    names = resolve_names(network, {*source.tensors, *source.aliases}, found.vision_layers)
    notes = (*found.notes, *check_vocabulary(found.path, found.config.vocab_size), *names.notes)
    return replace(names, notes=notes)


def _finish(network: ClipTextEncoder, found: ClipTextFolder, report: LoadReport) -> LoadReport:
    network.pretrained = Pretrained(found.path.absolute(), found.model_type, found.raw, report)
    return report


def _check_dropout(found: ClipTextFolder, dropout: float | None, *, is_training: bool) -> None:
    """The network has no dropout: whoever trains a model that was trained with some has to know."""
    file = found.path / CONFIG_FILE
    if dropout:
        raise ConfigurationError(f"{file}: a text encoder has no dropout here, got dropout={dropout}")
    if is_training and dropout is None and found.dropouts:
        shown = ", ".join(f"{key} = {value}" for key, value in found.dropouts.items())
        raise ConfigurationError(
            f"{file}: has {shown}; for training pass dropout=0.0 to from_pretrained, load or load_weights, to train "
            "without"
        )
