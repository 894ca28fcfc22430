"""CLIP folders that ``transformers`` made: the same embeddings and gradients here, and exports that it opens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila import BuildContext, RuntimeMode
from mila.models import ClipTextConfig, ClipTextEncoder
from mila.models.hugging_face.clip_names import canonical_names
from tests.models.clip_cases import CLIP_CASES, SHAPE, ClipCase, T
from tests.models.clip_running import clip_gradients, encode, load_clip, require_equal, require_equal_gradients

torch_clip = pytest.importorskip("tests.models.torch_clip", reason="transformers is not installed")
pytestmark = pytest.mark.parity
each_case = pytest.mark.parametrize("case", CLIP_CASES, ids=lambda case: case.name)

#: A model of ``transformers`` and its folder.
Made = Callable[[ClipCase], tuple[Any, Path]]
#: Bookkeeping.
NOT_COMPARED = {"_name_or_path", "dtype", "transformers_version", "architectures"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The model of a case and its folder; both are only read."""

    @cache
    def of_case(case_name: str) -> tuple[Any, Path]:
        case = next(each for each in CLIP_CASES if each.name == case_name)
        model, folder = torch_clip.new_clip_model(case), tmp_path_factory.mktemp(case_name) / "model"
        torch_clip.save_clip_folder(case, model, folder)
        return model, folder

    return lambda case: of_case(case.name)


@each_case
def test_outputs_agree_with_and_without_a_mask_of_the_padding(case: ClipCase, made: Made) -> None:
    model, folder = made(case)
    ids, mask = case.ids()
    found = encode(load_clip(folder), ids)
    require_equal(found, torch_clip.outputs_of(model, ids))
    require_equal(found, torch_clip.outputs_of(model, ids, mask), mask)


@each_case
def test_gradients_agree(case: ClipCase, made: Made) -> None:
    model, folder = made(case)
    ids, _ = case.ids()
    weights = torch_clip.weights_of(case, torch_clip.outputs_of(model, ids))
    own = clip_gradients(folder, ids, weights)
    names = {name: pieces[0].name for name, pieces in canonical_names(load_clip(folder)).items()}
    expected = torch_clip.clip_gradients_of(model, ids, weights)
    prefix = "text_model." if case.model == "CLIPTextModel" else ""
    require_equal_gradients(own, names, {f"{prefix}{name}": array for name, array in expected.items()})


@each_case
def test_exports_open_in_transformers(case: ClipCase, made: Made, tmp_path: Path) -> None:
    model, folder = made(case)
    ids, _ = case.ids()
    load_clip(folder).save_pretrained(tmp_path / "export", max_shard_size="2KB" if case.shards else "5GB")
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
