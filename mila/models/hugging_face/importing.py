"""Networks with the weights of a model folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from mila.core import LoadReport, RuntimeMode, TrainingStep
from mila.core.component import Component
from mila.core.loading import LoadPlan, Progress
from mila.core.pieces import NameMap
from mila.core.state import StoredRows, row_blocks
from mila.devices import DeviceId, ExecutionContext
from mila.errors import CheckpointError, ConfigurationError
from mila.memory.storage import DType
from mila.models.arguments import build_context, check_names, check_probability, check_progress, check_truth
from mila.models.clip import ClipTextEncoder
from mila.models.hugging_face.clip import load_clip_text_encoder, load_clip_weights
from mila.models.hugging_face.clip_config import clip_text_folder
from mila.models.hugging_face.folder import (
    CLIP_MODEL_TYPES,
    CONFIG_FILE,
    ModelFolder,
    model_folder,
    read_model_folder,
    read_raw_config,
)
from mila.models.hugging_face.names import HEAD, TABLE
from mila.models.hugging_face.vocabulary import check_vocabulary
from mila.models.hugging_face.weights import open_weights, require_layers
from mila.models.language_model import LanguageModel, LanguageModelConfig
from mila.models.pretrained import Pretrained
from mila.serialization import TensorSource

#: Fields of a config that say nothing about the function that a checkpoint was trained to be.
_FREE_FIELDS = frozenset({"dropout", "initial_std", "trainable", "tie_word_embeddings", "max_seq_len"})


@overload
def from_pretrained(
    folder: Path | str,
    *,
    context_length: int,
    batch_size: int = ...,
    runtime_mode: RuntimeMode = ...,
    device: str | DeviceId | ExecutionContext = ...,
    dtype: DType | type[Any] | str | None = ...,
    tie_word_embeddings: bool | None = ...,
    dropout: float | None = ...,
    ignore_fields: Collection[str] = ...,
    on_progress: Progress | None = ...,
    **build_options: Any,
) -> LanguageModel[Any]: ...


@overload
def from_pretrained(
    folder: Path | str,
    *,
    batch_size: int = ...,
    runtime_mode: RuntimeMode = ...,
    device: str | DeviceId | ExecutionContext = ...,
    dtype: DType | type[Any] | str | None = ...,
    dropout: float | None = ...,
    ignore_fields: Collection[str] = ...,
    on_progress: Progress | None = ...,
    **build_options: Any,
) -> ClipTextEncoder: ...


def from_pretrained(
    folder: Path | str,
    *,
    context_length: int | None = None,
    batch_size: int = 1,
    runtime_mode: RuntimeMode = RuntimeMode.INFERENCE,
    device: str | DeviceId | ExecutionContext = "cpu",
    dtype: DType | type[Any] | str | None = None,
    tie_word_embeddings: bool | None = None,
    dropout: float | None = None,
    ignore_fields: Collection[str] = (),
    on_progress: Progress | None = None,
    **build_options: Any,
) -> LanguageModel[Any] | ClipTextEncoder:
    """The network of a model folder, built and loaded: a language model, or the text encoder of CLIP.

    Everything is checked against the unbuilt network, names, shapes and dtypes of the files included, before anything
    is allocated; then the weights go from the files straight to their place.

    Args:
        folder: ``config.json`` and safetensors, as the Hugging Face libraries write them.
        context_length: positions to build a language model for, which needs it. A text encoder is built for its own
            length; for another there is :meth:`mila.models.ClipTextFolder.load`.
        batch_size: sequences to build for.
        runtime_mode: what the build allocates for.
        device: where the network runs; an :class:`~mila.ExecutionContext` also says with how many threads.
        dtype: stored dtype, float32 by default; weights of another float dtype are converted.
        tie_word_embeddings: whether the head computes with the token table; needed only where config and weights
            contradict each other.
        dropout: of the network; needed in training where the config has dropout.
        ignore_fields: unknown fields of ``config.json`` that do not change the result.
        on_progress: called with the bytes read so far and the bytes to read.
        **build_options: further fields of :class:`BuildContext`, such as ``prefill_size``.

    Raises:
        CheckpointError: the folder is malformed or incomplete, or has something that Mila does not compute; one
            message with all that is wrong.
        ConfigurationError: an argument that is none, or one that the model needs or does not have.
        ShapeError: sizes that are no positive integers, or more positions than the model has.
        OutOfMemoryError: there is less memory than the build needs.
    """
    check_progress(on_progress)
    check_truth("tie_word_embeddings", tie_word_embeddings)
    check_probability("dropout", dropout)
    check_names("ignore_fields", ignore_fields)
    sizes = {"batch_size": batch_size, "context_length": context_length}
    context = build_context("from_pretrained", sizes, runtime_mode, build_options)
    path, raw = read_raw_config(folder)
    if str(raw.get("model_type")) in CLIP_MODEL_TYPES:
        _refuse_head(folder, tie_word_embeddings)
        if context_length is not None:
            raise ConfigurationError(
                f"{folder}: a text encoder has no context_length, got {context_length}; for texts of another length "
                "there is read_clip_text_folder(folder).load(length=...)"
            )
        return load_clip_text_encoder(
            clip_text_folder(path, raw, ignore_fields),
            context,
            length=None,
            device=device,
            dtype=dtype,
            dropout=dropout,
            on_progress=on_progress,
        )
    found = model_folder(path, raw, tie_word_embeddings, dropout, ignore_fields)
    if context_length is None:
        raise ConfigurationError(
            f"{folder}: a language model needs context_length, the positions to build for; from_pretrained got none"
        )
    if runtime_mode is RuntimeMode.TRAINING and dropout is None:
        _require_decided_dropout(found)
    with open_weights(found.path) as source:
        require_layers(source, found.config.num_layers)  # before components are made of whatever a config says
        network = found.network(device=device, dtype=dtype)
        network.plan(context)  # what the build would refuse is refused before weights are looked at
        plan = LoadPlan(network, source, _resolve(network, found, source, tie_word_embeddings))
        network.build(context)
        _finish(network, found, plan.run(on_progress))
    return network


def load_weights(
    root: Component[Any],
    folder: Path | str,
    *,
    tie_word_embeddings: bool | None = None,
    dropout: float | None = None,
    ignore_fields: Collection[str] = (),
    on_progress: Progress | None = None,
) -> LoadReport:
    """Fill a built network, or the one in a training step, from a model folder.

    Args:
        root: a :class:`LanguageModel`, a :class:`ClipTextEncoder`, or a :class:`TrainingStep` of one.
        folder: whose config says what the network's says; see :func:`from_pretrained`.
        tie_word_embeddings: that of the network, to say so where config and weights contradict each other.
        dropout: that of the network, to say so where the folder's config has another and ``root`` is for training.
        ignore_fields: unknown fields of ``config.json`` that do not change the result.
        on_progress: called with the bytes read so far and the bytes to read.

    Raises:
        ConfigurationError: ``root`` is something else, its network is not as the arguments say, or dropout is not
            decided.
        CheckpointError: the folder does not fit the network; nothing was changed.
        LifecycleError: ``root`` is not built.
    """
    network = root.network if isinstance(root, TrainingStep) else root
    if not isinstance(network, LanguageModel | ClipTextEncoder):
        raise ConfigurationError(
            f"root: expected a language model, a text encoder, or a training step of one, got {root!r}"
        )
    check_progress(on_progress)
    check_truth("tie_word_embeddings", tie_word_embeddings)
    check_probability("dropout", dropout)
    root.require_built("load_weights")
    if isinstance(network, ClipTextEncoder):
        _refuse_head(folder, tie_word_embeddings)
        return load_clip_weights(network, folder, dropout=dropout, ignore_fields=ignore_fields, on_progress=on_progress)
    tied = network.config.tie_word_embeddings
    if tie_word_embeddings not in (None, tied):
        raise ConfigurationError(
            f"{network.path}: has tie_word_embeddings={tied}, got tie_word_embeddings={tie_word_embeddings}"
        )
    found = read_model_folder(folder, ignore_fields=ignore_fields)
    _require_same_config(network, found)
    if root.is_training_mode:
        _require_dropout_of(network, found, dropout)
    is_decided = tie_word_embeddings is not None or found.config.tie_word_embeddings != tied
    with open_weights(found.path) as source:
        names = _resolve(network, found, source, tied if is_decided else None)
        return _finish(network, found, LoadPlan(network, source, names).run(on_progress))


def _refuse_head(folder: Path | str, tie_word_embeddings: bool | None) -> None:
    if tie_word_embeddings is not None:
        raise ConfigurationError(f"{folder}: a text encoder has no head, got tie_word_embeddings={tie_word_embeddings}")


def _finish(network: LanguageModel[Any], found: ModelFolder, report: LoadReport) -> LoadReport:
    network.pretrained = Pretrained(found.path.absolute(), found.model_type, found.raw, report)
    return report


def _resolve(network: LanguageModel[Any], found: ModelFolder, source: TensorSource, tied: bool | None) -> NameMap:
    """The map of the files' names, the head decided; ``tied`` is what the caller decided about it."""
    available = {*source.tensors, *source.aliases}
    names = found.architecture.names.resolve(network, available)
    notes = (*found.notes, *check_vocabulary(found.path, network.config.vocab_size), *names.notes)
    names = replace(names, notes=notes)
    has_head = HEAD in available
    if not network.config.tie_word_embeddings:
        if has_head or tied is not None:
            return names
        problem = f"{_says(found)}, and the weights have no {HEAD}; pass tie_word_embeddings=True to use the table"
        return replace(names, problems=(*names.problems, problem))
    if not has_head:
        return names
    names = replace(names, ignored=names.ignored | {HEAD})
    if tied:
        return replace(names, notes=(*notes, f"{HEAD} is not used, as tie_word_embeddings=True says"))
    table = names.pieces[TABLE][0].name
    if table in available and not _are_equal(source, table, HEAD):
        problem = (
            f"{_says(found)}, and the weights have a {HEAD} that differs from {table}; pass "
            "tie_word_embeddings=False to use it, or True to use the table"
        )
        return replace(names, problems=(*names.problems, problem))
    return replace(names, notes=(*notes, f"{HEAD} equals {table}, and is stored once"))


def _says(found: ModelFolder) -> str:
    said = found.raw.get("tie_word_embeddings")
    if said is None:
        meant = found.config.tie_word_embeddings
        return f"config.json says nothing about tie_word_embeddings, for a {found.model_type} {meant}"
    return f"config.json says tie_word_embeddings = {said}"


def _are_equal(source: TensorSource, one: str, other: str) -> bool:
    """Whether two stored tensors have the same values; compared by tiles."""
    rows = [StoredRows.of(source, name) for name in (one, other)]
    if rows[0].shape != rows[1].shape:
        return False
    for start, block in row_blocks(rows[0]):
        twin = rows[1][start : start + len(block)]
        if block.dtype == twin.dtype:  # bit for bit, so that NaN equals itself
            block, twin = block.view(np.uint8), twin.view(np.uint8)
        else:
            block, twin = block.astype(np.float64), twin.astype(np.float64)
        if not np.array_equal(block, twin):
            return False
    return True


def _require_same_config(network: LanguageModel[Any], found: ModelFolder) -> None:
    """Raise where a network computes another function than the folder's, although the weights might fit."""
    own, read = _function_of(network.config), _function_of(found.config)
    differences = [
        f"{name} {own.get(name)!r} here, {read.get(name)!r} there"
        for name in own | read
        if own.get(name) != read.get(name)
    ]
    if differences:
        raise CheckpointError(f"{found.path}: is another model than {network.path}: " + "; ".join(differences))


def _function_of(config: LanguageModelConfig) -> dict[str, Any]:
    """The fields of a config that decide what it computes, with the defaults that other fields imply."""
    fields = {"class": type(config).__name__, **config.model_dump(exclude=set(_FREE_FIELDS))}
    width, heads, layers = config.embedding_dim, config.num_heads, tuple(range(config.num_layers))
    implied = {"hidden_dim": 4 * width, "num_kv_heads": heads, "head_dim": width // heads, "sliding_layers": layers}
    return fields | {name: value for name, value in implied.items() if fields.get(name) is None}


def _require_decided_dropout(found: ModelFolder) -> None:
    if found.dropouts:
        shown = ", ".join(f"{key} = {value}" for key, value in found.dropouts.items())
        hint = "dropout=0.0 to train without"
        if found.architecture.dropout_fields:
            hint += f", or another for {' and '.join(found.architecture.dropout_fields)}"
        raise ConfigurationError(f"{found.path / CONFIG_FILE}: has {shown}; for training pass {hint}")


def _require_dropout_of(network: LanguageModel[Any], found: ModelFolder, dropout: float | None) -> None:
    """Raise where a network that is to be trained has another dropout than the file, and nobody said so."""
    own = getattr(network.config, "dropout", 0.0)
    if dropout is not None and dropout != own:
        raise ConfigurationError(f"{network.path}: has dropout {own}, got dropout={dropout}")
    fields = found.architecture.dropout_fields
    is_same = fields and found.dropouts == dict.fromkeys(fields, own)
    if dropout is None and not is_same:
        _require_decided_dropout(found)
