"""``init=``, ``trainable=`` and ``policy=``: what every call takes beside ports and arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mila.errors import NetworkError, NetworkErrorCode
from mila.memory.storage import network_dtype
from mila.network_language.wording import shown
from mila.serialization.conversion import FLOATS

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")


@dataclass(frozen=True)
class Settings:
    """What a call says about its parameters.

    Attributes:
        initialization: constants by parameter, as float32 holds them; all others start as their operator says.
        trainable: whether its parameters are trained; ``None``: not said, so they are.
        trainable_overrides: the same by parameter.
    """

    initialization: Mapping[str, float] = field(default_factory=dict)
    trainable: bool | None = None
    trainable_overrides: Mapping[str, bool] = field(default_factory=dict)

    def is_trainable(self, parameter: str) -> bool:
        """Return whether a parameter is trained."""
        return self.trainable_overrides.get(parameter, self.trainable is not False)


def read_settings(alias: str, given: Mapping[str, object]) -> Settings:
    """Return what the reserved keywords of a call say.

    Raises:
        NetworkError: without a place: ``E_POLICY_CONFLICT``, ``E_INITIALIZATION``, ``E_TRAINABILITY``.
    """
    if "policy" in given:
        raise NetworkError("E_POLICY_CONFLICT", f"{alias} declares no policies, got {shown(given['policy'])}")
    initialization: dict[str, float] = {}
    if "init" in given:
        for path, value in _by_path(given["init"], "E_INITIALIZATION", "init").items():
            initialization[path] = _constant(path, value)
    trainable = given.get("trainable")
    if trainable is None and "trainable" not in given:
        return Settings(initialization)
    if isinstance(trainable, bool):
        return Settings(initialization, trainable)
    overrides: dict[str, bool] = {}
    for path, flag in _by_path(trainable, "E_TRAINABILITY", "trainable").items():
        if not isinstance(flag, bool):
            raise NetworkError("E_TRAINABILITY", f"trainable: {path} is True or False, got {shown(flag)}")
        overrides[path] = flag
    return Settings(initialization, None, overrides)


def check_targets(settings: Settings, parameters: Mapping[str, object], dtype: str) -> None:
    """Raise unless every parameter that the settings name is there, and ``dtype`` holds every constant.

    Raises:
        NetworkError: without a place: ``E_INITIALIZATION``, ``E_TRAINABILITY``.
    """
    targets: tuple[tuple[NetworkErrorCode, str, Mapping[str, object]], ...] = (
        ("E_INITIALIZATION", "init", settings.initialization),
        ("E_TRAINABILITY", "trainable", settings.trainable_overrides),
    )
    for code, keyword, paths in targets:
        for path in paths:
            if path not in parameters:
                known = ", ".join(parameters) or "none"
                raise NetworkError(code, f"{keyword}: no parameter {shown(path)}; its parameters: {known}")
    for path, value in settings.initialization.items():
        if abs(value) > FLOATS[network_dtype(dtype)]:
            raise NetworkError("E_INITIALIZATION", f"init: {path} is a number that {dtype} holds, got {value}")


def _by_path(value: object, code: NetworkErrorCode, keyword: str) -> dict[str, object]:
    if not isinstance(value, dict):
        expected = 'True, False or a mapping such as {"weight": False}'
        if keyword == "init":
            expected = 'a mapping such as {"weight": 0.5}'
        raise NetworkError(code, f"{keyword} is {expected}, got {shown(value)}")
    for path in value:
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise NetworkError(code, f"{keyword}: {shown(path)} is no name of a parameter")
    return value


def _constant(path: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with np.errstate(over="ignore"):
            constant = float(np.float32(float(value)))
        if math.isfinite(constant):
            return constant
    raise NetworkError("E_INITIALIZATION", f"init: {path} is a number that float32 holds, got {shown(value)}")
