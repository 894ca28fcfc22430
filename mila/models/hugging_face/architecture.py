"""What an architecture is: how its ``config.json`` becomes a Mila config and back, and how its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mila.errors import CheckpointError, ConfigurationError
from mila.models.hugging_face.fields import DTYPE, NUMBER, Field, FieldReader, describe_validation, short
from mila.models.hugging_face.names import NameTable
from mila.models.language_model import LanguageModel, LanguageModelConfig


class InexpressibleError(ConfigurationError):
    """A config that an architecture has no words for; the message names the field."""


@dataclass(frozen=True)
class Interpretation:
    """What a ``config.json`` says.

    Attributes:
        config: the Mila config.
        dropouts: the dropout probabilities that are not zero, by their names in the file.
        notes: what a user should be told.
    """

    config: LanguageModelConfig
    dropouts: Mapping[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Architecture:
    """One ``model_type``; the same table serves import, export and planning.

    Attributes:
        model_type: as in ``config.json``.
        class_name: of the model with its head, in ``transformers``.
        base_class_name: of the model without its head.
        config_class: of the network.
        network_class: what computes it.
        fields: fields that become one field of the config each.
        fixed: fields that have a kernel for some values only, by default absent.
        dropouts: fields with dropout probabilities.
        dropout_fields: those of them that the config's ``dropout`` stands for; none where it has no such field.
        read: the fields of the config that depend on several fields of the file.
        write: the reverse; raises :class:`InexpressibleError`.
        names: of the tensors.
    """

    model_type: str
    class_name: str
    base_class_name: str
    config_class: type[LanguageModelConfig]
    network_class: type[LanguageModel[Any]]
    fields: tuple[Field, ...]
    fixed: Mapping[str, tuple[Any, ...]]
    dropouts: tuple[str, ...]
    dropout_fields: tuple[str, ...]
    read: Callable[[FieldReader], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]
    names: NameTable

    def interpret(
        self, raw: Mapping[str, Any], path: Path, overrides: Mapping[str, Any], ignored: Collection[str] = ()
    ) -> Interpretation:
        """Make a config of a file's content.

        Args:
            raw: the content of ``config.json``.
            path: the file, for errors.
            overrides: fields of the Mila config that the caller decides.
            ignored: unknown fields of the file that the caller knows not to matter.

        Raises:
            CheckpointError: one message with everything that is missing, wrong, unknown, or without a kernel.
        """
        reader = FieldReader(raw)
        values = {
            each.target: reader.read(each.key, each.kind, each.default, nullable=each.nullable) for each in self.fields
        }
        values |= self.read(reader)
        for key, allowed in {**FIXED_FIELDS, **self.fixed}.items():
            reader.require(key, allowed)
        dropouts = {key: reader.read(key, NUMBER, 0.0, nullable=True) or 0.0 for key in self.dropouts}
        reader.problems += [
            f"{key}: expected a probability, got {value}" for key, value in dropouts.items() if not 0 <= value <= 1
        ]
        require_one_dtype(reader)
        self._require_known_class(reader)
        reader.finish(path, ignored)
        try:
            config = self.config_class(**{**values, **overrides})
        except ValidationError as error:
            keys = {each.target: each.key for each in self.fields}
            raise CheckpointError(f"{path}: {describe_validation(error, keys)}") from None
        return Interpretation(config, {key: value for key, value in dropouts.items() if value}, tuple(reader.notes))

    def _require_known_class(self, reader: FieldReader) -> None:
        """Models of other classes have other heads, or other graphs."""
        said = reader.take("architectures")
        if said is None:
            return
        known = (self.class_name, self.base_class_name)
        if not isinstance(said, list) or not all(isinstance(each, str) for each in said):
            reader.problems.append(f"architectures: expected a list of names, got {short(said)}")
        elif other := [each for each in said if each not in known]:
            expected, got = " or ".join(known), short(", ".join(other))
            reader.problems.append(f"architectures: expected {expected}, got {got}, which Mila does not compute")

    def express(self, config: LanguageModelConfig) -> dict[str, Any]:
        """The fields of ``config.json`` that say what ``config`` says; raises :class:`InexpressibleError`."""
        if not isinstance(config, self.config_class):
            raise InexpressibleError(type(config).__name__)
        fields: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.class_name]}
        for each in self.fields:
            fields[each.key] = each.kind.write(getattr(config, each.target))
        return fields | self.write(config)


def require_one_dtype(reader: FieldReader) -> None:
    """The dtype is a matter of the weights' files; but a config that says two was put together wrongly."""
    read = {key: reader.read(key, DTYPE, None) for key in ("dtype", "torch_dtype")}
    said = {key: value for key, value in read.items() if value is not None}
    if len(set(said.values())) > 1:
        reader.problems.append("two values: " + ", ".join(f"{key} = {value}" for key, value in said.items()))


#: Fields whose other values no network of Mila computes.
FIXED_FIELDS: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False, None),
    "is_causal": (True, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "per_layer_config": (None, {}),
}
