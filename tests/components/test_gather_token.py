"""GatherToken: the first of the largest ids, or of one id, whatever the ids are; copies, never computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mila.components import GatherToken, GatherTokenConfig
from mila.core import BuildContext, RuntimeMode, TrainingMode
from mila.errors import DTypeError, ShapeError

CASES = Path(__file__).parents[1] / "cases" / "network_numerics.jsonl"
VECTORS = [case for case in map(json.loads, CASES.read_text().splitlines()) if case.get("op") == "gather_token"]
SMALLEST, LARGEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
Array = NDArray[Any]

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def built(
    x: Array, ids: Array, mode: RuntimeMode = RuntimeMode.TRAINING, *, token_id: int | None = None
) -> GatherToken:
    component = GatherToken("gather", GatherTokenConfig(token_id=token_id), device="cpu", dtype=x.dtype)
    component.build(BuildContext({"x": x.shape, "ids": ids.shape}, mode))
    return component


def random(dtype: str, *shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["id"])
@both_dtypes
def test_the_vectors_of_the_facts(case: dict[str, Any], dtype: str) -> None:
    x, ids = np.array(case["x"], dtype), np.array(case["ids"], np.int64)
    component = built(x, ids)
    output = component.forward(x, ids)
    np.testing.assert_array_equal(output, np.array(case["output"], dtype))
    dx, dids = component.backward(x, ids, 2 * output)
    np.testing.assert_array_equal(dx, np.array(case["x_grad"], dtype))
    assert not dids.any()


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 6


@pytest.mark.parametrize(
    ("ids", "position"),
    [
        ([SMALLEST, SMALLEST, SMALLEST], 0),
        ([SMALLEST, SMALLEST + 1, SMALLEST], 1),
        ([LARGEST - 1, LARGEST, LARGEST], 1),
        ([SMALLEST, -1, LARGEST], 2),
        ([2**53, 2**53 + 1, 2**53], 1),  # equal as float64
        ([-(2**53) - 1, -(2**53), -(2**53)], 1),
        ([-5, -5, -5], 0),
    ],
)
def test_any_int64_is_compared_exactly(ids: list[int], position: int) -> None:
    x, many = random("float32", 1, 3, 4), np.array([ids])
    np.testing.assert_array_equal(built(x, many).forward(x, many), x[:, position])


@pytest.mark.parametrize(
    ("token_id", "dtype", "ids", "position"),
    [
        (5, "int64", [9, 5, 5, 9], 1),
        (9, "int64", [9, 5, 5, 9], 0),
        (7, "int64", [9, 5, 5, 9], 0),
        (-1, "int32", [2, 3, -1, -1], 2),
        (2**32 - 1, "int32", [2, 3, -1, -1], 0),
        (SMALLEST, "int64", [0, LARGEST, SMALLEST, 0], 2),
        (LARGEST, "int64", [0, SMALLEST, 0, LARGEST], 3),
        (2**53 + 1, "int64", [2**53, 2**53 + 2, 2**53 + 1, 0], 2),  # equal as float64
    ],
)
def test_an_id_is_found_at_its_first_position_or_the_text_at_its_first(
    token_id: int, dtype: str, ids: list[int], position: int
) -> None:
    x, many = random("float32", 1, 4, 3), np.array([ids], dtype)
    component = built(x, many, token_id=token_id)
    output = component.forward(x, many)
    np.testing.assert_array_equal(output, x[:, position])
    dx, _ = component.backward(x, many, output)
    np.testing.assert_array_equal(dx, np.where(np.arange(4)[:, None] == position, x, 0))


@pytest.mark.parametrize("position", [0, 4095, 4096, 9999])
def test_an_id_is_found_in_a_long_text(position: int) -> None:
    x, ids = random("float32", 1, 10_000, 2), np.zeros((1, 10_000), np.int64)
    ids[0, position:] = 3
    np.testing.assert_array_equal(built(x, ids, token_id=3).forward(x, ids), x[:, position])


@both_dtypes
def test_what_is_not_finite_stays_where_it_is(dtype: str) -> None:
    x, ids = random(dtype, 3, 4, 5), np.array([[0, 9, 1, 9], [3, 2, 1, 0], [1, 1, 1, 2]], np.int32)
    chosen = np.array([1, 0, 3])
    others = np.ones((3, 4), bool)
    others[np.arange(3), chosen] = False
    x[others] = [np.nan, np.inf, -np.inf, np.nan, np.inf]
    component = built(x, ids)
    np.testing.assert_array_equal(component.forward(x, ids), x[np.arange(3), chosen])
    dy = random(dtype, 3, 5)
    dy[0, 0] = np.nan
    dx, _ = component.backward(x, ids, dy)
    np.testing.assert_array_equal(dx[~others], dy[[0, 1, 2]])
    assert dx[others].tobytes() == bytes(dx[others].nbytes)  # zeros, and no negative ones


def test_a_value_that_is_not_a_number_is_copied_bit_for_bit() -> None:
    x = np.array([0x7FC12345, 0xFF800001, 0x80000000, 0x00000001], np.uint32).view(np.float32).reshape(1, 1, 4)
    ids = np.zeros((1, 1), np.int64)
    assert built(x, ids).forward(x, ids).tobytes() == x.tobytes()


def test_train_eval_and_inference_give_the_same() -> None:
    x, ids = random("float32", 4, 64, 768), np.random.default_rng(1).integers(-5, 5, (4, 64))
    training, inference = built(x, ids), built(x, ids, RuntimeMode.INFERENCE)
    expected = x[np.arange(4), np.argmax(ids, axis=1)]
    np.testing.assert_array_equal(training.forward(x, ids), expected)
    training.set_training_mode(TrainingMode.EVAL)
    np.testing.assert_array_equal(training.forward(x, ids), expected)
    np.testing.assert_array_equal(inference.forward(x, ids), expected)


def test_inputs_that_do_not_go_together_are_refused_when_they_come() -> None:
    x, ids = random("float32", 3, 5, 2), np.zeros((3, 5), np.int64)
    component = built(x, ids)
    for bad in (ids[:, :4].copy(), ids[:2]):
        with pytest.raises(ShapeError, match=r"gather: expected ids of shape \(3, 5\) for x of shape \(3, 5, 2\), got"):
            component.forward(x, bad)
    for wrong in (ids.astype(np.float32), ids.astype(bool), ids.astype(np.uint32)):
        with pytest.raises(DTypeError, match="'ids': expected dtype int32 or int64"):
            component.forward(x, wrong)
    with pytest.raises(DTypeError, match="'x': expected dtype float32"):
        component.forward(ids[..., None].repeat(2, axis=2), ids)


def test_there_is_one_mode() -> None:
    assert GatherTokenConfig().mode == "argmax"
    assert GatherTokenConfig.from_json(GatherTokenConfig().to_json()) == GatherTokenConfig(mode="argmax")
