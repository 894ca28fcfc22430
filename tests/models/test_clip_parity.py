"""CLIP folders that ``transformers`` made: the same embeddings and gradients here, and exports that it opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila import BuildContext, RuntimeMode
from mila.models import ClipTextConfig, ClipTextEncoder, read_clip_text_folder
from mila.models.hugging_face.clip_names import canonical_names
from mila.serialization import open_tensors
from tests.models.clip_cases import CLIP_CASES, SHAPE, ClipCase, T
from tests.models.clip_running import (
    clip_contents,
    clip_gradients,
    encode,
    load_clip,
    require_equal,
    require_equal_gradients,
)

torch_clip = pytest.importorskip("tests.models.torch_clip", reason="transformers is not installed")
pytestmark = pytest.mark.parity
each_case = pytest.mark.parametrize("case", CLIP_CASES, ids=lambda case: case.name)

#: Bookkeeping.
NOT_COMPARED = {"_name_or_path", "dtype", "transformers_version", "architectures"}


@pytest.fixture
def model(case: ClipCase, tmp_path: Path) -> Any:
    """The model of a case; its folder is ``tmp_path / "model"``."""
    made = torch_clip.new_clip_model(case)
    torch_clip.save_clip_folder(case, made, tmp_path / "model")
    return made


@each_case
def test_outputs_agree_with_and_without_a_mask_of_the_padding(case: ClipCase, model: Any, tmp_path: Path) -> None:
    ids, mask = case.ids()
    found = encode(load_clip(tmp_path / "model"), ids)
    require_equal(found, torch_clip.outputs_of(model, ids))
    require_equal(found, torch_clip.outputs_of(model, ids, mask), mask)


@each_case
def test_gradients_agree(case: ClipCase, model: Any, tmp_path: Path) -> None:
    ids, _ = case.ids()
    weights = torch_clip.weights_of(case, torch_clip.outputs_of(model, ids))
    own = clip_gradients(tmp_path / "model", ids, weights)
    names = {name: pieces[0].name for name, pieces in canonical_names(load_clip(tmp_path / "model")).items()}
    expected = torch_clip.clip_gradients_of(model, ids, weights)
    prefix = "text_model." if case.model == "CLIPTextModel" else ""
    require_equal_gradients(own, names, {f"{prefix}{name}": array for name, array in expected.items()})


@each_case
def test_exports_open_in_transformers(case: ClipCase, model: Any, tmp_path: Path) -> None:
    ids, _ = case.ids()
    load_clip(tmp_path / "model").save_pretrained(tmp_path / "export", max_shard_size="2KB" if case.shards else "5GB")
    opened, report = torch_clip.load_clip_model(tmp_path / "export")
    assert {key: value for key, value in report.items() if value} == {}
    whole = case.model == "CLIPModel"
    assert type(opened).__name__ == ("CLIPTextModelWithProjection" if whole else case.model)
    before, after = torch_clip.outputs_of(model, ids), torch_clip.outputs_of(opened, ids)
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    text = model.config.text_config if whole else model.config
    for key, value in text.to_dict().items():
        if key not in NOT_COMPARED and not (whole and key == "projection_dim"):
            assert getattr(opened.config, key) == value, key


@each_case
def test_import_export_import_keeps_every_bit(case: ClipCase, model: Any, tmp_path: Path) -> None:
    first = load_clip(tmp_path / "model")
    first.save_pretrained(tmp_path / "export", dtype=case.dtype)
    second = load_clip(tmp_path / "export")
    assert (clip_contents(second), second.text_config) == (clip_contents(first), first.text_config)
    second.save_pretrained(tmp_path / "again", dtype=case.dtype)
    with open_tensors(tmp_path / "export") as one, open_tensors(tmp_path / "again") as other:
        assert all(one.read(name).tobytes() == other.read(name).tobytes() for name in {*one.tensors, *other.tensors})


@each_case
def test_the_plan_of_a_folder_is_what_its_network_holds(case: ClipCase, model: Any, tmp_path: Path) -> None:
    for mode in RuntimeMode:
        encoder = load_clip(tmp_path / "model", runtime_mode=mode)
        unbuilt = read_clip_text_folder(tmp_path / "model").network()
        assert unbuilt.get_required_memory(BuildContext(SHAPE, mode)) == encoder.get_memory_stats()


@pytest.mark.parametrize("projection", [None, 6])
@pytest.mark.parametrize("end", [None, 22, 5])
def test_transformers_opens_hand_made_encoders(projection: int | None, end: int | None, tmp_path: Path) -> None:
    config = ClipTextConfig(
        vocab_size=23,
        embedding_dim=10,
        hidden_dim=13,
        num_layers=1,
        num_heads=5,
        max_seq_len=T,
        activation="gelu",
        projection_dim=projection,
        end_of_text_id=end,
    )
    encoder = ClipTextEncoder("mine", config, device="cpu", seed=5)
    encoder.build(BuildContext(SHAPE, RuntimeMode.INFERENCE, initialize_parameters=True))
    encoder.save_pretrained(tmp_path / "export")
    opened, report = torch_clip.load_clip_model(tmp_path / "export")
    assert {key: value for key, value in report.items() if value} == {}
    ids, _ = CLIP_CASES[0].ids()
    require_equal(encode(encoder, ids), torch_clip.outputs_of(opened, ids))
