"""Every architecture computes what ``transformers`` computes, by golden folders (``make_golden.py``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mila import RuntimeMode
from mila.kernels.signatures import Array
from mila.models import read_model_folder
from tests.models.folder_cases import GOLDEN, GOLDEN_CASES, FolderCase
from tests.models.running import (
    contents,
    decode,
    forward,
    gradients,
    load,
    relative_error,
    stored,
    stored_pieces,
    training_step,
)

each_case = pytest.mark.parametrize("case", GOLDEN_CASES, ids=lambda case: case.name)
TOLERANCE = 1e-5


def expected_of(case: FolderCase) -> dict[str, Array]:
    return dict(load_file(GOLDEN / f"{case.name}.safetensors"))


def test_every_architecture_has_a_golden_folder() -> None:
    assert {case.model_type for case in GOLDEN_CASES} == {"gpt2", "llama", "mistral", "qwen2", "qwen3"}


@pytest.mark.parametrize("prefill_size", [11, 4, 1])
@each_case
def test_logits_agree(case: FolderCase, prefill_size: int) -> None:
    expected = expected_of(case)
    network = load(GOLDEN / case.name, prefill_size=prefill_size)
    logits = forward(network, expected["ids"]) if prefill_size == 11 else decode(network, expected["ids"])
    assert relative_error(logits, expected["logits"]) <= TOLERANCE


@each_case
def test_gradients_agree(case: FolderCase) -> None:
    expected = expected_of(case)
    step = training_step(GOLDEN / case.name)
    own = gradients(step, expected["ids"], expected["targets"])
    for name, pieces in stored_pieces(step.network, case.model_type).items():
        for piece in pieces:
            found, other = piece.of(own[name]), expected[f"gradient.{piece.name}"]
            if not name.endswith("qkv_proj.bias"):  # whose part for keys is zero but for rounding
                assert relative_error(found, other) <= TOLERANCE, piece.name
            assert np.max(np.abs(found - other)) <= TOLERANCE, piece.name


@each_case
def test_import_export_import_keeps_every_bit(case: FolderCase, tmp_path: Path) -> None:
    first = load(GOLDEN / case.name)
    first.save_pretrained(tmp_path / "export", dtype=case.dtype, max_shard_size="3KB")
    second = load(tmp_path / "export")
    assert contents(second) == contents(first)
    assert stored(tmp_path / "export") == stored(GOLDEN / case.name)


@pytest.mark.parametrize("mode", RuntimeMode)
@each_case
def test_the_plan_of_a_folder_is_what_its_network_holds(case: FolderCase, mode: RuntimeMode) -> None:
    network = load(GOLDEN / case.name, runtime_mode=mode, all_logits=False, dropout=0.0)
    assert network.build_context is not None
    unbuilt = read_model_folder(GOLDEN / case.name, dropout=0.0).network(device="cpu")
    assert unbuilt.get_required_memory(network.build_context) == network.get_memory_stats()


@each_case
def test_conversion_is_reported(case: FolderCase) -> None:
    network = load(GOLDEN / case.name, dtype="float64")
    assert network.pretrained is not None
    report = network.pretrained.report
    assert report.loaded == len(report.converted) == len(stored(GOLDEN / case.name))
    assert set(report.converted.values()) == {case.dtype}
