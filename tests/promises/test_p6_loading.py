"""P6: loading is strict, and reports everything at once before any weight is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mila.core import Component, Network, RuntimeMode
from mila.core.state import TensorSavePass
from mila.devices import ExecutionContext
from mila.errors import CheckpointError, DTypeError, ShapeError
from mila.serialization import ArchiveMode, ModelArchive, SafetensorsFile, SafetensorsWriter, save_tensors
from tests.promises.case import INFERENCE, Array, Case
from tests.promises.cases import CASES, DTYPES

WITH_PARAMETERS = [case for case in CASES if case.make(None).parameter_count()]
NETWORKS = [case for case in WITH_PARAMETERS if isinstance(case.make(None), Network)]
OTHER = {"float32": np.float64, "float64": np.float32}


def tensors(component: Component[Any]) -> dict[str, Array]:
    return dict(zip(component.get_parameter_names(), component.get_parameters(), strict=True))


def contents(component: Component[Any]) -> list[bytes]:
    return [array.tobytes() for array in component.get_parameters()]


def other_weights(case: Case, device: ExecutionContext, mode: RuntimeMode, dtype: str) -> Component[Any]:
    """Return the same component with other weights."""
    return case.build(device, mode, dtype, seed=99)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", WITH_PARAMETERS, ids=str)
def test_an_archive_gives_back_the_same_bits(case: Case, dtype: str, device: ExecutionContext, tmp_path: Path) -> None:
    saved = case.build(device, case.modes[-1], dtype)
    with ModelArchive.create(tmp_path / "model", ArchiveMode.WEIGHTS_ONLY) as archive:
        saved.save_(archive, ArchiveMode.WEIGHTS_ONLY)
    for mode in case.modes:
        loaded = case.make(device, dtype, seed=99)
        loaded.build(case.context(mode, initialize_parameters=False))
        with ModelArchive.open(tmp_path / "model") as reader:
            loaded.load_(reader, ArchiveMode.WEIGHTS_ONLY)
        assert contents(loaded) == contents(saved)
        if not any(getattr(part.config, "shared_weight", False) for part in loaded.walk()):
            loaded.forward(*case.inputs(loaded))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_a_weights_file_gives_back_the_same_bits(
    case: Case, dtype: str, device: ExecutionContext, tmp_path: Path
) -> None:
    saved = case.build(device, case.modes[-1], dtype)
    assert isinstance(saved, Network)
    saved.save_weights(tmp_path / "model.safetensors")
    loaded = other_weights(case, device, case.modes[0], dtype)
    assert isinstance(loaded, Network)
    report = loaded.load_weights(tmp_path / "model.safetensors")
    assert contents(loaded) == contents(saved)
    assert (report.loaded, dict(report.converted)) == (len(saved.get_parameter_names()), {})


@pytest.mark.parametrize("case", WITH_PARAMETERS, ids=str)
def test_flat_tensors_stand_under_their_prefix(case: Case, device: ExecutionContext, tmp_path: Path) -> None:
    component = case.build(device, case.modes[-1])
    with SafetensorsWriter(tmp_path / "flat.safetensors") as writer:
        component.save_flat_tensors(writer, "a.b", TensorSavePass.DECLARE)
        writer.begin()
        component.save_flat_tensors(writer, "a.b", TensorSavePass.WRITE)
    with SafetensorsFile(tmp_path / "flat.safetensors") as stored:
        for name, array in tensors(component).items():
            assert np.array_equal(stored.read(f"a.b.{name}").view(np.uint8), array.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_floats_convert_to_floats_and_are_reported(
    case: Case, dtype: str, device: ExecutionContext, tmp_path: Path
) -> None:
    network = case.build(device, case.modes[0], dtype)
    assert isinstance(network, Network)
    other = {name: array.astype(OTHER[dtype]) for name, array in tensors(network).items()}
    save_tensors(tmp_path / "other.safetensors", other)
    report = network.load_weights(tmp_path / "other.safetensors")
    assert dict(report.converted) == dict.fromkeys(other, np.dtype(OTHER[dtype]).name)
    for name, array in tensors(network).items():
        assert array.dtype == dtype
        assert np.array_equal(array, other[name].astype(dtype))


@pytest.mark.parametrize("case", NETWORKS[::3], ids=str)
def test_every_problem_is_reported_at_once_before_any_weight_is_touched(
    case: Case, device: ExecutionContext, tmp_path: Path
) -> None:
    network = case.build(device, case.modes[0])
    assert isinstance(network, Network)
    rows = np.random.default_rng(0)
    stored = {name: rows.standard_normal(array.shape).astype(np.float32) for name, array in tensors(network).items()}
    names = list(stored)
    missing, misshapen, inconvertible = names[0], names[1], names[2 % len(names)]
    stored[misshapen] = np.zeros((*stored[misshapen].shape, 2), np.float32)
    if inconvertible != missing:
        stored[inconvertible] = stored[inconvertible].astype(np.int32)
    del stored[missing]
    stored |= {"surplus.one": np.zeros(3, np.float32), "surplus.two": np.ones(3, np.float32)}
    save_tensors(tmp_path / "bad.safetensors", stored)
    before = contents(network)
    with pytest.raises(CheckpointError) as caught:
        network.load_weights(tmp_path / "bad.safetensors")
    message = str(caught.value)
    for part in (f"missing {missing}", f"{misshapen}: expected shape", "surplus.one", "surplus.two", "bad.safetensors"):
        assert part in message
    assert inconvertible == missing or f"{inconvertible}: expected float32, got int32" in message
    assert "\n" not in message
    assert contents(network) == before


NEVER_FLOATS = [np.int32, np.int64, np.uint8, np.bool_, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("never", NEVER_FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_float_never_becomes_one(
    never: Any, dtype: str, device: ExecutionContext, tmp_path: Path
) -> None:
    network = NETWORKS[0].build(device, INFERENCE, dtype)
    assert isinstance(network, Network)
    before = contents(network)
    for name, array in tensors(network).items():
        with pytest.raises(DTypeError, match="never converted"):
            network.load_parameter(name, np.ones(array.shape, never))
    stored = {name: np.ones(array.shape, never) for name, array in tensors(network).items()}
    save_tensors(tmp_path / "never.safetensors", stored)
    with pytest.raises(CheckpointError) as caught:
        network.load_weights(tmp_path / "never.safetensors")
    assert all(name in str(caught.value) for name in stored)
    assert contents(network) == before


@pytest.mark.parametrize("source", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_parameter_converts_from_any_float(source: Any, dtype: str, device: ExecutionContext) -> None:
    component = next(case for case in WITH_PARAMETERS if "LayerNorm()" in str(case)).build(device, INFERENCE, dtype)
    values = np.array([0.1, -2.5, 3e4, 0, 1e-3, 7, np.inf], source)
    component.load_parameter("weight", values)
    assert np.array_equal(tensors(component)["weight"], values.astype(dtype))


def test_a_value_beyond_the_range_is_refused(device: ExecutionContext) -> None:
    component = next(case for case in WITH_PARAMETERS if "LayerNorm()" in str(case)).build(device, INFERENCE)
    before = contents(component)
    with pytest.raises(DTypeError, match="beyond the range of float32"):
        component.load_parameter("weight", np.array([1, 2, 3, 4, 5, 6, 1e39]))
    with pytest.raises(ShapeError, match=r"expected shape \(7,\), got \(8,\)"):
        component.load_parameter("weight", np.ones(8, np.float32))
    with pytest.raises(CheckpointError, match="no parameter 'wieght'"):
        component.load_parameter("wieght", np.ones(7, np.float32))
    assert contents(component) == before


@pytest.mark.parametrize("case", WITH_PARAMETERS[::5], ids=str)
def test_an_archive_of_another_architecture_is_refused(case: Case, device: ExecutionContext, tmp_path: Path) -> None:
    other = next(found for found in WITH_PARAMETERS if found.configs != case.configs)
    with ModelArchive.create(tmp_path / "model", ArchiveMode.WEIGHTS_ONLY) as archive:
        other.build(device, other.modes[0]).save_(archive, ArchiveMode.WEIGHTS_ONLY)
    component = case.build(device, case.modes[0])
    before = contents(component)
    with ModelArchive.open(tmp_path / "model") as reader, pytest.raises(CheckpointError, match="holds"):
        component.load_(reader, ArchiveMode.WEIGHTS_ONLY)
    assert contents(component) == before
