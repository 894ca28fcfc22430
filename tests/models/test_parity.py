"""Model folders that ``transformers`` made: the same logits and gradients here, and exports that it opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila import RuntimeMode
from mila.models import read_model_folder
from mila.models.hugging_face.folder import ARCHITECTURES
from tests.models.folder_cases import FOLDER_CASES, FolderCase
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

torch_folders = pytest.importorskip("tests.models.torch_folders", reason="transformers is not installed")
pytestmark = pytest.mark.parity
each_case = pytest.mark.parametrize("case", FOLDER_CASES, ids=lambda case: case.name)

TOLERANCE = 1e-4
#: Bookkeeping; and which layers have a window is said by their types, by this number only in old files.
NOT_COMPARED = {"_name_or_path", "dtype", "transformers_version", "architectures", "max_window_layers"}


@pytest.fixture
def model(case: FolderCase, tmp_path: Path) -> Any:
    """The model of a case; its folder is ``tmp_path / "model"``."""
    made = torch_folders.new_model(case)
    torch_folders.save_folder(case, made, tmp_path / "model")
    return made


@each_case
def test_logits_agree(case: FolderCase, model: Any, tmp_path: Path) -> None:
    ids, _ = torch_folders.draw_ids(case)
    network = load(tmp_path / "model")
    logits = forward(network, ids)
    assert relative_error(logits, torch_folders.logits_of(model, ids)) <= TOLERANCE
    one_by_one = load(tmp_path / "model", prefill_size=1)
    assert relative_error(decode(one_by_one, ids), logits) <= TOLERANCE


@each_case
def test_gradients_agree(case: FolderCase, model: Any, tmp_path: Path) -> None:
    ids, targets = torch_folders.draw_ids(case)
    step = training_step(tmp_path / "model")
    own = gradients(step, ids, targets)
    expected = torch_folders.gradients_of(model, ids, targets)
    # The gradient of a key's bias is zero but for rounding: each is measured by the largest gradient of its parameter.
    for name, pieces in stored_pieces(step.network, case.model_type).items():
        found = np.concatenate([piece.of(own[name]).reshape(-1) for piece in pieces])
        other = np.concatenate([expected.pop(piece.name).reshape(-1) for piece in pieces])
        assert relative_error(found, other) <= TOLERANCE, name
    assert not expected


@each_case
def test_exports_open_in_transformers(case: FolderCase, model: Any, tmp_path: Path) -> None:
    ids, _ = torch_folders.draw_ids(case)
    network = load(tmp_path / "model")
    network.save_pretrained(tmp_path / "export", max_shard_size="3KB" if case.shards == 3 else "5GB")
    opened, report = torch_folders.load_model(tmp_path / "export")
    assert {key: value for key, value in report.items() if value} == {}
    assert type(opened) is type(model)
    assert np.array_equal(torch_folders.logits_of(opened, ids), torch_folders.logits_of(model, ids))
    for key, value in model.config.to_dict().items():
        if key not in NOT_COMPARED:
            assert getattr(opened.config, key) == getattr(model.config, key), (key, value)


@each_case
def test_import_export_import_keeps_every_bit(case: FolderCase, model: Any, tmp_path: Path) -> None:
    first = load(tmp_path / "model")
    first.save_pretrained(tmp_path / "export", dtype=case.dtype)
    second = load(tmp_path / "export")
    assert contents(second) == contents(first)
    architecture = ARCHITECTURES[case.model_type]
    assert architecture.express(second.config) == architecture.express(first.config)
    second.save_pretrained(tmp_path / "again", dtype=case.dtype)
    assert stored(tmp_path / "again") == stored(tmp_path / "export")
    assert stored(tmp_path / "again") == stored(tmp_path / "model")


@each_case
def test_the_plan_of_a_folder_is_what_its_network_holds(case: FolderCase, model: Any, tmp_path: Path) -> None:
    for mode in RuntimeMode:
        network = load(tmp_path / "model", runtime_mode=mode, all_logits=False, dropout=0.0)
        assert network.build_context is not None
        unbuilt = read_model_folder(tmp_path / "model", dropout=0.0).network(device="cpu")
        assert unbuilt.get_required_memory(network.build_context) == network.get_memory_stats()
