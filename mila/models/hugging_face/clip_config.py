"""``config.json`` of CLIP: a text encoder alone, or the one in a whole model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mila.core import RuntimeMode
from mila.core.loading import Progress
from mila.devices import DeviceId, ExecutionContext
from mila.errors import CheckpointError, ConfigurationError, NetworkError
from mila.memory.storage import DType
from mila.models.arguments import build_context, check_names, check_probability, check_progress
from mila.models.clip import ClipTextEncoder
from mila.models.clip_definition import ClipTextConfig
from mila.models.hugging_face.architecture import FIXED_FIELDS, require_one_dtype
from mila.models.hugging_face.fields import (
    INTEGER,
    NUMBER,
    REQUIRED,
    Field,
    FieldReader,
    Kind,
    describe_validation,
    short,
)
from mila.models.hugging_face.folder import CLIP_MODEL_TYPES, CONFIG_FILE, read_raw_config
from mila.models.hugging_face.harmless_fields import KEPT_FIELDS
from mila.network_language.limits import LARGEST_ARGUMENT, LARGEST_DIMENSION, MOST_ELEMENTS

TEXT_MODEL, FULL_MODEL = CLIP_MODEL_TYPES
_PLAIN, _PROJECTED, _FULL = "CLIPTextModel", "CLIPTextModelWithProjection", "CLIPModel"
_CLASSES = {TEXT_MODEL: (_PLAIN, _PROJECTED), FULL_MODEL: (_FULL,)}
#: In the field ``eos_token_id`` it does not name a token: it asks for the rule of old checkpoints.
_LARGEST_ID_RULE = 2
_ACTIVATION = Kind(
    "the name of an activation function",
    (str,),
    {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_python": "gelu"},
)
_DROPOUTS = ("attention_dropout", "dropout")
#: The default of the text's and of the image's part where a file of a whole model leaves a field out, as files of some
#: versions of transformers do.
_FIELDS = (
    Field("vocab_size", "vocab_size", INTEGER, 49408),
    Field("hidden_size", "embedding_dim", INTEGER, 512),
    Field("intermediate_size", "hidden_dim", INTEGER, 2048),
    Field("num_hidden_layers", "num_layers", INTEGER, 12),
    Field("num_attention_heads", "num_heads", INTEGER, 8),
    Field("max_position_embeddings", "max_seq_len", INTEGER, 77),
    Field("hidden_act", "activation", _ACTIVATION, "quick_gelu"),
    Field("layer_norm_eps", "norm_epsilon", NUMBER, 1e-5),
)
#: Of the tensors between the parts; all others are of parameters alone.
_SIZES_OF_VALUES = ("hidden_size", "max_position_embeddings", "projection_dim")
_PROJECTION_DIM, _END_OF_TEXT, _VISION_LAYERS = 512, 49407, 12
#: Known not to change what the text's part computes; the dimension of the projection is read where there is one.
_WITHOUT_EFFECT = ("initializer_factor", "tie_word_embeddings", "projection_dim")


@dataclass(frozen=True)
class ClipTextFolder:
    """What the folder of a CLIP model says about its text encoder.

    Attributes:
        path: the folder.
        model_type: ``clip_text_model``, or ``clip`` for a whole model.
        config: of the text encoder.
        raw: the content of ``config.json``.
        vision_layers: blocks of the image encoder, which is not read; ``None`` where there is none.
        pad_token_id: what texts are padded with; ``None`` where the folder does not say.
        dropouts: the file's dropout probabilities that are not zero; the network has none.
        notes: what a user should be told.
    """

    path: Path
    model_type: str
    config: ClipTextConfig
    raw: Mapping[str, Any]
    vision_layers: int | None
    pad_token_id: int | None
    dropouts: Mapping[str, float]
    notes: tuple[str, ...]

    def network(
        self,
        name: str = "model",
        *,
        length: int | None = None,
        device: str | DeviceId | ExecutionContext | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> ClipTextEncoder:
        """The network of the config, unbuilt: nothing is allocated, so that it can be planned.

        Raises:
            CheckpointError: sizes beyond what the network language allows.
        """
        try:
            return ClipTextEncoder(name, self.config, length=length, device=device, dtype=dtype, seed=seed)
        except NetworkError as error:
            raise CheckpointError(f"{self.path / CONFIG_FILE}: {_too_large(self.config) or error.message}") from None

    def load(
        self,
        *,
        length: int | None = None,
        batch_size: int = 1,
        runtime_mode: RuntimeMode = RuntimeMode.INFERENCE,
        device: str | DeviceId | ExecutionContext = "cpu",
        dtype: DType | type[Any] | str | None = None,
        dropout: float | None = None,
        on_progress: Progress | None = None,
        **build_options: Any,
    ) -> ClipTextEncoder:
        """The network with the folder's weights, built.

        Args:
            length: tokens of a text, by default as many as the model takes.
            batch_size: texts to build for.
            runtime_mode: what the build allocates for.
            device: where the network runs; an :class:`~mila.ExecutionContext` also says with how many threads.
            dtype: stored dtype, float32 by default; weights of another float dtype are converted.
            dropout: 0, where a model whose config has dropout is to be trained without.
            on_progress: called with the bytes read so far and the bytes to read.
            **build_options: further fields of :class:`BuildContext`, such as ``layout``.

        Raises:
            CheckpointError: the weights do not fit, or sizes are beyond what the network language allows.
            ConfigurationError: an argument that is none, or a length that the model does not have.
            ShapeError: a batch that is no positive integer.
            OutOfMemoryError: there is less memory than the build needs.
        """
        from mila.models.hugging_face.clip import load_clip_text_encoder  # it knows this class

        check_progress(on_progress)
        check_probability("dropout", dropout)
        context = build_context("load", {"batch_size": batch_size, "length": length}, runtime_mode, build_options)
        return load_clip_text_encoder(
            self, context, length=length, device=device, dtype=dtype, dropout=dropout, on_progress=on_progress
        )


def _too_large(config: ClipTextConfig) -> str:
    """Which sizes are beyond what the network language allows, by the names that they have in the file."""
    sizes = {each.key: getattr(config, each.target) for each in _FIELDS} | {"projection_dim": config.projection_dim}
    problems = [
        f"{key}: expected at most {most:,}, got {value:,}"
        for key, value in sizes.items()
        if isinstance(value, int)
        and value > (most := LARGEST_DIMENSION if key in _SIZES_OF_VALUES else LARGEST_ARGUMENT)
    ]
    numbers = config.max_seq_len * config.embedding_dim
    if numbers > MOST_ELEMENTS:
        names = "max_position_embeddings times hidden_size"
        problems.append(f"{names}: expected at most {MOST_ELEMENTS:,}, got {numbers:,}")
    return "; ".join(problems)


def read_clip_text_folder(folder: Path | str, *, ignore_fields: Collection[str] = ()) -> ClipTextFolder:
    """Read ``config.json`` of a CLIP model; no weights.

    Args:
        folder: of a ``CLIPTextModel``, a ``CLIPTextModelWithProjection`` or a ``CLIPModel``.
        ignore_fields: unknown fields of the config that do not change the result.

    Raises:
        ConfigurationError: an argument that is none.
        CheckpointError: no such folder, another model, or one message with every field that is missing, wrong, unknown,
            or without a kernel.
    """
    check_names("ignore_fields", ignore_fields)
    path, raw = read_raw_config(folder)
    return clip_text_folder(path, raw, ignore_fields)


def clip_text_folder(path: Path, raw: Mapping[str, Any], ignore_fields: Collection[str]) -> ClipTextFolder:
    """What the content ``raw`` of a ``config.json`` says; errors as for :func:`read_clip_text_folder`."""
    model_type = str(raw.get("model_type"))
    if model_type not in CLIP_MODEL_TYPES:
        expected = " or ".join(CLIP_MODEL_TYPES)
        raise CheckpointError(f"{path / CONFIG_FILE}: expected the model type {expected}, got {model_type!r}")
    return _Interpreter(path, model_type, raw).run(ignore_fields)


class _Interpreter:
    """One ``config.json``: the fields of the whole model, and those of its text encoder, which may be the same."""

    def __init__(self, path: Path, model_type: str, raw: Mapping[str, Any]) -> None:
        self._path, self._raw, self._model_type = path, raw, model_type
        self._is_full = model_type == FULL_MODEL
        self._outer = FieldReader(raw)
        self._text = FieldReader(text_fields(raw)) if self._is_full else self._outer

    def run(self, ignored: Collection[str]) -> ClipTextFolder:
        """Read everything, or raise one error with all that is wrong."""
        values = self._read_text()
        values["projection_dim"] = self._read_projection()
        vision_layers = self._read_vision() if self._is_full else None
        dropouts = self._read_dropouts()
        pad = self._text.read("pad_token_id", INTEGER, None)
        for reader in {id(each): each for each in (self._outer, self._text)}.values():
            for key, allowed in FIXED_FIELDS.items():
                reader.require(key, allowed)
            require_one_dtype(reader)
            for key in _WITHOUT_EFFECT:
                reader.take(key)
        problems = self._outer.all_problems(ignored)
        if self._is_full:
            problems += [f"text_config: {problem}" for problem in self._text.all_problems(ignored)]
        file = self._path / CONFIG_FILE
        if problems:
            raise CheckpointError(f"{file}: " + "; ".join(problems))
        try:
            config = ClipTextConfig(**values)
        except ValidationError as error:
            keys = {each.target: each.key for each in _FIELDS} | {"end_of_text_id": "eos_token_id"}
            place = "text_config: " if self._is_full else ""
            raise CheckpointError(f"{file}: {place}{describe_validation(error, keys)}") from None
        return ClipTextFolder(
            self._path, self._model_type, config, self._raw, vision_layers, pad, dropouts, self._notes(config)
        )

    def _read_text(self) -> dict[str, Any]:
        reader = self._text
        values = {
            each.target: reader.read(each.key, each.kind, each.default if self._is_full else REQUIRED)
            for each in _FIELDS
        }
        end = reader.read("eos_token_id", INTEGER, _END_OF_TEXT)
        return values | {"end_of_text_id": None if end == _LARGEST_ID_RULE else end}

    def _read_projection(self) -> int | None:
        """The width of the projection, by the class of the model."""
        known = _CLASSES[self._model_type]
        said = self._outer.take("architectures")
        name = known[0]
        if said is not None:
            is_one = isinstance(said, list) and len(said) == 1 and said[0] in known
            if not is_one:
                self._outer.problems.append(f"architectures: expected one of {', '.join(known)}, got {short(said)}")
            else:
                name = said[0]
        if name == _PLAIN:
            return None
        width: int | None = self._outer.read("projection_dim", INTEGER, _PROJECTION_DIM)
        return width

    def _read_vision(self) -> int:
        """How many blocks the image encoder has; nothing else of it is looked at."""
        self._outer.take("logit_scale_init_value")
        for key in ("text_config", "text_config_dict", "vision_config", "vision_config_dict"):
            if not isinstance(self._outer.take(key), dict | None):
                self._outer.problems.append(f"{key}: expected an object, got {short(self._raw[key])}")
        reader = FieldReader(_part(self._raw, "vision_config", {"num_hidden_layers": _VISION_LAYERS}))
        layers: int = reader.read("num_hidden_layers", INTEGER, _VISION_LAYERS)
        self._outer.problems += [f"vision_config: {problem}" for problem in reader.problems]
        return layers

    def _read_dropouts(self) -> dict[str, float]:
        found = {key: self._text.read(key, NUMBER, 0.0, nullable=True) or 0.0 for key in _DROPOUTS}
        self._text.problems += [
            f"{key}: expected a probability, got {value}" for key, value in found.items() if not 0 <= value <= 1
        ]
        return {key: value for key, value in found.items() if value}

    def _notes(self, config: ClipTextConfig) -> tuple[str, ...]:
        end = config.end_of_text_id
        if end is None or end < config.vocab_size:
            return ()
        return (
            f"eos_token_id {end} is not among the {config.vocab_size} tokens: every text is pooled at its first token",
        )


def _part(raw: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a part of a whole model: what ``<key>_dict`` says, and its defaults, go before ``<key>``."""
    said, overriding = raw.get(key), raw.get(f"{key}_dict")
    fields = dict(said) if isinstance(said, dict) else {}
    return fields | {**defaults, **overriding} if isinstance(overriding, dict) else fields


def text_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the text encoder, of the content of a ``config.json``."""
    if raw.get("model_type") != FULL_MODEL:
        return dict(raw)
    defaults = {each.key: each.kind.write(each.default) for each in _FIELDS}
    return _part(raw, "text_config", defaults | {"eos_token_id": _END_OF_TEXT})


def clip_fields(config: ClipTextConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of a text encoder.

    Args:
        config: of the encoder.
        raw: the content of the ``config.json`` that it came from; empty where it was made from scratch.

    Raises:
        ConfigurationError: ``end_of_text_id`` 2, which ``transformers`` takes for the rule of old checkpoints.
    """
    if config.end_of_text_id == _LARGEST_ID_RULE:
        raise ConfigurationError(
            f"end_of_text_id: expected any other id than {_LARGEST_ID_RULE}: transformers takes it for the rule of the "
            "largest id"
        )
    said = text_fields(raw)
    kept = dict.fromkeys(("bos_token_id", "pad_token_id")) | {"attention_dropout": 0.0}
    kept |= {key: said[key] for key in (KEPT_FIELDS | {*_DROPOUTS, *_WITHOUT_EFFECT}) & said.keys()}
    fields = {each.key: each.kind.write(getattr(config, each.target)) for each in _FIELDS}
    end = _LARGEST_ID_RULE if config.end_of_text_id is None else config.end_of_text_id
    name = _PLAIN if config.projection_dim is None else _PROJECTED
    fields |= {"model_type": TEXT_MODEL, "architectures": [name], "eos_token_id": end}
    if config.projection_dim is not None:
        fields["projection_dim"] = config.projection_dim
    return kept | fields
