"""The shared numbers: outputs and gradients of networks whose parameters follow a formula, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mila
from mila import BuildContext, RuntimeMode
from tests.network_language.building import named_gradients, named_parameters, network_of
from tests.promises.case import Array
from tests.promises.gradient_check import as_tuple

VECTORS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "cases" / "network_numerics.jsonl").read_text("utf-8").splitlines()
]
NETWORKS = [vector for vector in VECTORS if "config" in vector]
GATHERED = [vector for vector in VECTORS if "config" not in vector]
#: Half a unit of the last place of the file, which has nine decimals; what is computed here adds less than as much.
TOLERANCE = 1e-9
#: The reference normalises in float32 here, whatever the dtype of the network; Mila does it in float64.
FLOAT32_INSIDE = {"num-rms_norm()": float(np.finfo(np.float32).eps)}


def parameter_name(name: str) -> str:
    """What Mila calls ``nodes.n_<node>.<name>``."""
    return name.removeprefix("nodes.n_")


def test_there_are_vectors() -> None:
    assert (len(NETWORKS), len(GATHERED)) == (18, 6)


@pytest.mark.parametrize("vector", NETWORKS, ids=lambda vector: vector["id"])
def test_a_network_computes_the_shared_numbers(vector: dict[str, Any]) -> None:
    network = network_of(vector, compute_dtype="float64")
    x: Array = np.array(vector["input"], vector["input_dtype"] or "float64")
    network.build(BuildContext(x.shape, RuntimeMode.TRAINING))
    parameters = named_parameters(network)
    names = [parameter_name(name) for name in vector["parameter_order"]]
    assert {*parameters} == {*names}
    for index, name in enumerate(names):
        places = np.arange(1, parameters[name].size + 1, dtype=np.float64)
        network.load_parameter(name, (0.5 * np.sin(0.1 * places + index)).reshape(parameters[name].shape))

    tolerance = FLOAT32_INSIDE.get(vector["id"], TOLERANCE)
    output = network.forward(x)
    assert output.dtype == np.float64
    np.testing.assert_allclose(output, np.array(vector["output"]), rtol=tolerance, atol=tolerance)
    network.zero_gradients()
    network.backward(x, 2 * output)
    gradients = named_gradients(network)
    for key in ("grad_sums", "grad_abs_sums"):
        assert {parameter_name(name) for name in vector[key]} == {*names}
        for name, expected in vector[key].items():
            gradient = gradients[parameter_name(name)]
            assert gradient is not None
            found = (gradient if key == "grad_sums" else np.abs(gradient)).sum()
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=f"{key} of {name}")


@pytest.mark.parametrize("vector", GATHERED, ids=lambda vector: vector["id"])
def test_gather_token_computes_the_shared_numbers(vector: dict[str, Any]) -> None:
    """They are numbers that every dtype holds: the results are exact."""
    x, ids = np.array(vector["x"]), np.array(vector["ids"], np.int64)
    network = mila.network(
        "gather_token(x, ids)",
        input_shape={"x": ("B", *x.shape[1:]), "ids": ("B", *ids.shape[1:])},
        output_shape=("B", x.shape[2]),
        input_dtype={"ids": "int64"},
        device="cpu",
        compute_dtype="float64",
    )
    network.build(BuildContext({"x": x.shape, "ids": ids.shape}, RuntimeMode.TRAINING))
    output = network.forward(x, ids)
    assert np.array_equal(output, vector["output"])
    x_gradient, ids_gradient = as_tuple(network.backward(x, ids, 2 * output))
    assert np.array_equal(x_gradient, vector["x_grad"])
    assert not ids_gradient.any()
