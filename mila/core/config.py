"""Configs: what a component is, frozen, checked, and written as JSON."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict


class ComponentConfig(BaseModel):
    """Base of all configs; unknown fields and wrong types are refused by pydantic's own error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def to_json(self) -> str:
        """The config as JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The config that :meth:`to_json` wrote."""
        return cls.model_validate_json(text)


class ParameterizedConfig(ComponentConfig):
    """Config of a component that owns parameters.

    Attributes:
        trainable: ``False`` freezes the parameters: they get neither gradients nor optimizer moments.
    """

    trainable: bool = True
