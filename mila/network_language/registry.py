"""The operators that a definition may use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mila.errors import NetworkError
from mila.network_language.operator import Operator
from mila.network_language.wording import did_you_mean, shown


class Registry(Collection[str]):
    """Operators by their name in the text; it never changes. Iterating gives the names.

    Example:
        ``mila.resolve(source, ..., registry=BUILT_IN.extended(my_operator))``
    """

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._by_alias: dict[str, Operator] = {}
        self._by_identity: dict[str, Operator] = {}
        for operator in operators:
            if operator.alias in self._by_alias or operator.identity in self._by_identity:
                raise NetworkError(
                    "E_REGISTRY", f"operator {operator.alias} ({operator.identity}): name or identity is taken"
                )
            self._by_alias[operator.alias] = self._by_identity[operator.identity] = operator

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators, in the order in which they were declared."""
        return tuple(self._by_alias.values())

    def extended(self, *operators: Operator) -> Registry:
        """Return a registry with more operators.

        Raises:
            NetworkError: ``E_REGISTRY``: a name or an identity that is taken.
        """
        return Registry((*self.operators, *operators))

    def __getitem__(self, alias: str) -> Operator:
        """Return the operator of this name.

        Raises:
            NetworkError: ``E_OPERATOR``: there is none.
        """
        if alias not in self._by_alias:
            raise NetworkError("E_OPERATOR", f"there is no operator {shown(alias)}{did_you_mean(alias, self)}")
        return self._by_alias[alias]

    def __contains__(self, alias: object) -> bool:
        return alias in self._by_alias

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_alias)

    def __len__(self) -> int:
        return len(self._by_alias)

    def with_identity(self, identity: str) -> Operator:
        """Return the operator that a saved plan names.

        Raises:
            NetworkError: ``E_STATE_VERSION``: none of this name and version.
        """
        if identity not in self._by_identity:
            raise NetworkError("E_STATE_VERSION", f"no operator here is {shown(identity)}")
        return self._by_identity[identity]
