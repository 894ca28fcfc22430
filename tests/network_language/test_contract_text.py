"""Contracts as text: what is read, what is written, and what is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest

import mila
from mila.network_language import BUILT_IN
from mila.network_language.catalogue import example_source
from mila.network_language.contract_text import (
    comment_lines,
    contract_comments,
    near_miss,
    read_input_dtype,
    read_shapes,
)

EXAMPLES = [example for operator in BUILT_IN.operators for example in operator.examples]


def refused(index: int, message: str) -> ValueError:
    return ValueError(f"{index}: {message}")


def contracts_of(source: str) -> dict[str, Any]:
    texts: dict[str, list[str]] = {}
    for comment in contract_comments(source):
        texts.setdefault(comment.key, []).append(comment.value)
    return {
        "input_shape": read_shapes(texts["input"], refused),
        "output_shape": read_shapes(texts["output"], refused),
        "dtype": texts.get("dtype", ["float32"])[0],
        "input_dtype": read_input_dtype(texts["input_dtype"], refused) if "input_dtype" in texts else None,
    }


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        (["B, 6"], ("B", 6)),
        (["B,6,8"], ("B", 6, 8)),
        ([" [B, 6] "], ("B", 6)),
        (["(4, 6)"], (4, 6)),
        (["x = B, 6"], {"x": ("B", 6)}),
        (["x=B,6,8", "ids = [B, 6]"], {"x": ("B", 6, 8), "ids": ("B", 6)}),
        (["X=B,0"], {"X": ("B", 0)}),
    ],
)
def test_shapes_are_read(texts: list[str], shapes: object) -> None:
    assert read_shapes(texts, refused) == shapes


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([""], "0: expected a shape such as B, 6, 8"),
        (["B, six"], "got 'B, six'"),
        (["B, 6,"], "got 'B, 6,'"),
        (["[B, 6"], r"got '\[B, 6'"),
        (["B, -6"], "got 'B, -6'"),
        (["the pooled token"], "got 'the pooled token'"),
        (["1x = B, 6"], "got '1x = B, 6'"),
        ([f"B, {'9' * 5000}"], "expected a shape"),
        (["B, 6", "B, 8"], "several tensors have a line each and all a name"),
        (["x = B, 6", "B, 8"], "1: several tensors"),
        (["x = B, 6", "x = B, 8"], "1: x is given twice"),
    ],
)
def test_what_is_no_shape_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_shapes(texts, refused)


def test_dtypes_are_read() -> None:
    assert read_input_dtype(["int64"], refused) == "int64"
    assert read_input_dtype(["ids = int64", "mask=bool"], refused) == {"ids": "int64", "mask": "bool"}
    with pytest.raises(ValueError, match="ids is given twice"):
        read_input_dtype(["ids=int64", "ids=bool"], refused)


def test_only_the_comments_at_the_top_are_contracts() -> None:
    source = "# An encoder.\r\n\r\n  #input:B, 6\r\n# output :  B, 8\n# inputs: no\nlinear(8)\n# dtype: float16"
    found = [(each.key, each.value, each.place.line, each.place.column) for each in contract_comments(source)]
    assert found == [("input", "B, 6", 3, 10), ("output", "B, 8", 4, 13)]


@pytest.mark.parametrize(
    ("source", "key", "said"),
    [
        ("# text\n# inputs: B, 6", "input", "line 2 says # inputs: where # input: is a contract"),
        ("#Output : B, 8", "output", "line 1 says # Output: where # output: is a contract"),
        ("# Input dtype: int64", "input_dtype", "line 1 says # Input dtype: where # input_dtype: is a contract"),
        ("# input-dtypes: int64", "input_dtype", "line 1 says # input-dtypes:"),
        ("# Input dtype: int64", "input", None),
        ("# input: B, 6", "input", None),
        ("# the input: B, 6", "input", None),
        ("relu()\n# Input: B, 6", "input", None),
    ],
)
def test_a_comment_that_nearly_is_a_contract_is_named(source: str, key: Any, said: str | None) -> None:
    found = near_miss(source, key)
    assert found is None if said is None else found is not None and found.startswith(said)


def test_a_comment_is_refused_at_its_place() -> None:
    comment = next(contract_comments("\n# output: what comes out"))
    error = comment.refuse("expected a shape")
    assert str(error) == "E_SCHEMA (line 2, column 11): # output: expected a shape"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.source[:30])
def test_an_example_with_its_contracts_is_a_complete_file(example: Any) -> None:
    source = example_source(example)
    network = mila.resolve(source, **contracts_of(source))
    given = (example.input_shape, example.output_shape)
    same = mila.resolve(example.source, input_shape=given[0], output_shape=given[1], input_dtype=example.input_dtype)
    assert network.semantic_digest == same.semantic_digest


@pytest.mark.parametrize(
    "contracts",
    [
        {"input_shape": ("B", 6), "output_shape": (4, 6), "dtype": "bfloat16", "input_dtype": None},
        {
            "input_shape": {"x": ("B", 6, 8), "ids": ("B", 6)},
            "output_shape": {"y": ("B", 8)},
            "dtype": "float32",
            "input_dtype": {"ids": "int64"},
        },
    ],
)
def test_written_contracts_are_read_as_they_were(contracts: dict[str, Any]) -> None:
    assert contracts_of("\n".join(comment_lines(**contracts))) == contracts
