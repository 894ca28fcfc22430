"""A plan in the making: storages, and what their owners call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mila.core.planned_build import Storage
from mila.errors import ConfigurationError
from mila.memory.declarations import Declaration

if TYPE_CHECKING:
    from mila.core.component import Component


@dataclass(slots=True)
class Draft:
    """What was declared so far.

    Attributes:
        storages: in order.
        names: for each component, its buffers by name.
        keys: buffers that several components share, by key.
    """

    storages: list[Storage] = field(default_factory=list)
    names: dict[Component[Any], dict[str, Storage]] = field(default_factory=dict)
    keys: dict[Any, Storage] = field(default_factory=dict)

    def add(
        self, owner: Component[Any], declaration: Declaration, arena: str, intervals: list[tuple[int, int]]
    ) -> Storage:
        """Bytes of their own for ``declaration``, alive during ``intervals``."""
        storage = Storage(owner, declaration, arena, intervals)
        self.storages.append(storage)
        self.bind(owner, declaration.name, storage)
        return storage

    def bind(self, owner: Component[Any], name: str, storage: Storage) -> None:
        """Let ``owner`` call ``storage`` by ``name``; :class:`ConfigurationError` for a second time."""
        buffers = self.names.setdefault(owner, {})
        if name in buffers:
            raise ConfigurationError(f"{owner.path}: declares {name!r} twice")
        buffers[name] = storage
