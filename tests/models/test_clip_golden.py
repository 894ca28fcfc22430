"""CLIP's text encoder computes what ``transformers`` computes, by golden folders (``make_clip_golden.py``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mila import BuildContext, Layout, RuntimeMode
from mila.errors import NetworkError, ShapeError, TokenIdError
from mila.kernels.signatures import Array
from mila.models import (
    CLIP_REGISTRY,
    ClipTextConfig,
    ClipTextEncoder,
    clip_text_definition,
    read_clip_text_folder,
)
from mila.models.hugging_face.clip_names import canonical_names
from mila.network_language import plan_from_json, resolve
from mila.serialization import open_tensors
from tests.models.clip_cases import CLIP_GOLDEN, CLIP_GOLDEN_CASES, SHAPE, B, ClipCase, T
from tests.models.clip_running import (
    clip_contents,
    clip_gradients,
    clip_notes,
    edited_clip,
    encode,
    load_clip,
    require_equal,
    require_equal_gradients,
)

each_case = pytest.mark.parametrize("case", CLIP_GOLDEN_CASES, ids=lambda case: case.name)


def expected_of(case: ClipCase, kind: str = "") -> dict[str, Array]:
    """The arrays of a golden file whose names begin with ``kind``, or have no kind."""
    arrays = load_file(CLIP_GOLDEN / f"{case.name}.safetensors")
    if kind:
        return {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
    return {name: array for name, array in arrays.items() if "." not in name}


@each_case
def test_outputs_agree(case: ClipCase) -> None:
    ids, _ = case.ids()
    encoder = load_clip(CLIP_GOLDEN / case.name)
    require_equal(encode(encoder, ids), expected_of(case))
    require_equal(encode(encoder, ids.astype(np.int32)), expected_of(case))


@each_case
def test_a_smaller_batch_is_a_part_of_a_larger_one(case: ClipCase) -> None:
    ids, _ = case.ids()
    encoder = load_clip(CLIP_GOLDEN / case.name)
    whole = encode(encoder, ids)
    for row in range(B):
        require_equal(
            encode(encoder, ids[row : row + 1]), {name: array[row : row + 1] for name, array in whole.items()}
        )


@pytest.mark.parametrize("length", [9, 7])
@each_case
def test_padding_and_a_shorter_definition_change_nothing(case: ClipCase, length: int) -> None:
    """The two texts that end before the padding begins."""
    ids, _ = case.ids()
    expected = encode(load_clip(CLIP_GOLDEN / case.name), ids)
    shorter = load_clip(CLIP_GOLDEN / case.name, length=length, batch_size=2)
    assert shorter.length == length
    found = encode(shorter, ids[:2, :length].copy())
    require_equal(
        found, {name: array[:2, :length] if array.ndim == 3 else array[:2] for name, array in expected.items()}
    )


@each_case
def test_gradients_agree(case: ClipCase) -> None:
    ids, _ = case.ids()
    own = clip_gradients(CLIP_GOLDEN / case.name, ids, expected_of(case, "weight."))
    names = {name: pieces[0].name for name, pieces in canonical_names(load_clip(CLIP_GOLDEN / case.name)).items()}
    gradients = expected_of(case, "gradient.")
    if case.model == "CLIPTextModel":  # whose own names have no prefix in the latest version
        gradients = {f"text_model.{name}": array for name, array in gradients.items()}
    require_equal_gradients(own, names, gradients)


@pytest.mark.parametrize("mode", RuntimeMode)
@each_case
def test_the_plan_of_a_folder_is_what_its_network_holds(case: ClipCase, mode: RuntimeMode) -> None:
    encoder = load_clip(CLIP_GOLDEN / case.name, runtime_mode=mode)
    unbuilt = read_clip_text_folder(CLIP_GOLDEN / case.name).network()
    assert unbuilt.get_required_memory(BuildContext(SHAPE, mode)) == encoder.get_memory_stats()


@each_case
def test_import_export_import_keeps_every_bit(case: ClipCase, tmp_path: Path) -> None:
    first = load_clip(CLIP_GOLDEN / case.name)
    first.save_pretrained(tmp_path / "export", max_shard_size="3KB")
    second = load_clip(tmp_path / "export")
    assert (clip_contents(second), second.text_config) == (clip_contents(first), first.text_config)
    with open_tensors(CLIP_GOLDEN / case.name) as before, open_tensors(tmp_path / "export") as after:
        prefix = "text_model." if case.model == "CLIPTextModel" else ""
        for name in after.tensors:
            assert np.array_equal(after.read(name), before.read(name.removeprefix(prefix))), name


@pytest.mark.parametrize("name", ["text_old", "projected"])
def test_both_forms_of_names_and_old_buffers_are_read(name: str, tmp_path: Path) -> None:
    def rename(tensors: dict[str, Array]) -> None:
        renamed = {
            each if each == "text_projection.weight" else f"text_model.{each.removeprefix('text_model.')}": array
            for each, array in tensors.items()
        }
        tensors.clear()
        tensors.update(renamed, **{"text_model.embeddings.position_ids": np.arange(T, dtype=np.int64)[None]})

    prefixed = load_clip(edited_clip(tmp_path / "prefixed", name, rename))
    assert clip_contents(prefixed) == clip_contents(load_clip(CLIP_GOLDEN / name))
    assert clip_notes(prefixed) == "ignored the buffer text_model.embeddings.position_ids"


def test_own_files_keep_every_bit(tmp_path: Path) -> None:
    encoder = load_clip(CLIP_GOLDEN / "projected")
    encoder.save_weights(tmp_path / "weights.safetensors")
    other = read_clip_text_folder(CLIP_GOLDEN / "projected").network(device="cpu")
    other.build(BuildContext(SHAPE, RuntimeMode.INFERENCE))
    other.load_weights(tmp_path / "weights.safetensors")
    assert clip_contents(other) == clip_contents(encoder)


def test_the_encoder_is_a_network_of_named_nodes() -> None:
    encoder = load_clip(CLIP_GOLDEN / "projected")
    assert str(encoder) == encoder.resolved.network_table()
    assert encoder["layer_1_feed_forward"].parameter_count() == 15 * 19 * 2 + 19 + 15
    assert [each.name for each in encoder.resolved.outputs] == ["last_hidden_states", "pooled", "embeds"]
    assert "attention(n, 3, causal=True" in clip_text_definition(encoder.text_config)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (np.zeros((2, 9), np.int64), ShapeError, "expected"),
        (np.zeros((5, 11), np.int64), ShapeError, "axis 0 expected 1 to 4, got 5"),
        (np.zeros(11, np.int64), ShapeError, "expected 2 axes"),
        (np.full((1, 11), 23), TokenIdError, "23 at position"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids: Array, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_clip(CLIP_GOLDEN / "projected").forward(ids)


@each_case
def test_an_encoder_takes_ids_and_the_gradients_of_its_outputs(case: ClipCase) -> None:
    """No mask, under either rule of pooling."""
    encoder = load_clip(CLIP_GOLDEN / case.name, runtime_mode=RuntimeMode.TRAINING)
    ids = np.zeros(SHAPE, np.int64)
    for inputs, got in (((), 0), ((ids, ids), 2)):
        with pytest.raises(ShapeError, match=rf"expected 1 inputs? \(ids\), got {got}"):
            encoder.forward(*inputs)
    assert [tensor.name for tensor in encoder.resolved.inputs] == ["ids"]
    gradients = list(encode(encoder, ids).values())
    count = len(gradients)
    with pytest.raises(ShapeError, match=f"backward expected 1 inputs and {count} gradients, got {count} arrays"):
        encoder.backward(ids, *gradients[1:])
    assert not encoder.backward(ids, *gradients).any()


@pytest.mark.parametrize(("ids", "position"), [([0, 4, 8, 6, 8], 2), ([8, 6, 8, 0, 0], 0), ([0, 4, 5, 6, 7], 0)])
def test_a_text_is_pooled_at_the_first_place_of_its_end_or_at_its_first_token(ids: list[int], position: int) -> None:
    sizes: dict[str, Any] = {"vocab_size": 10, "embedding_dim": 4, "hidden_dim": 6, "num_heads": 2, "max_seq_len": 5}
    encoder = ClipTextEncoder("text", ClipTextConfig(**sizes, num_layers=1, end_of_text_id=8), device="cpu", seed=3)
    encoder.build(BuildContext({"ids": (1, 5)}, RuntimeMode.INFERENCE, initialize_parameters=True))
    found = encode(encoder, np.array([ids]))
    assert np.array_equal(found["pooled"], found["last_hidden_states"][:, position])


def test_the_operator_of_pooling_is_one_like_any_other() -> None:
    """Its example resolves, and a plan with it is read by whoever names the operators of CLIP."""
    operator = CLIP_REGISTRY["gather_id"]
    (example,) = operator.examples
    made = resolve(
        example.source,
        input_shape=example.input_shape,
        output_shape=example.output_shape,
        input_dtype=example.input_dtype,
        registry=CLIP_REGISTRY,
    )
    assert plan_from_json(made.to_json(), registry=CLIP_REGISTRY) == made
    with pytest.raises(NetworkError, match="E_STATE_VERSION: no operator here is 'gather_id@1'"):
        plan_from_json(made.to_json())
    with pytest.raises(NetworkError, match="gather_id"):
        resolve("gather_id(x, ids)", input_shape={"x": (1, 5, 4), "ids": (1, 5)}, output_shape=(1, 4))
    encoder = load_clip(CLIP_GOLDEN / "projected")
    assert plan_from_json(encoder.config.plan, registry=CLIP_REGISTRY) == encoder.resolved


def test_a_half_precision_encoder_is_stored_so() -> None:
    encoder = load_clip(CLIP_GOLDEN / "projected", dtype="bfloat16")
    assert {array.dtype.name for array in encoder.get_parameters()} == {"bfloat16"}
    case = next(case for case in CLIP_GOLDEN_CASES if case.name == "projected")
    assert np.max(np.abs(encode(encoder, case.ids()[0])["embeds"] - expected_of(case)["embeds"])) < 0.2


def test_a_fresh_encoder_is_made_from_a_config() -> None:
    config = ClipTextConfig(vocab_size=9, embedding_dim=4, hidden_dim=6, num_layers=1, num_heads=2, max_seq_len=5)
    encoder = ClipTextEncoder("text", config, device="cpu", seed=3)
    encoder.build(BuildContext((2, 5), RuntimeMode.TRAINING))
    assert [array is None or array.shape for array in encoder.forward(np.zeros((2, 5), np.int64))] == [
        (2, 5, 4),
        (2, 4),
        (2, 512),
    ]


@each_case
def test_sharing_bytes_changes_nothing(case: ClipCase) -> None:
    """Declared lifetimes are true: without any sharing, and with spent bytes made NaN, every bit is the same."""
    ids, _ = case.ids()
    weights = expected_of(case, "weight.")
    made = []
    for layout in Layout:
        encoder = load_clip(CLIP_GOLDEN / case.name, runtime_mode=RuntimeMode.TRAINING, layout=layout)
        outputs = encode(encoder, ids)
        encoder.backward(ids, *(weights[name] for name in outputs))
        made.append([*outputs.values(), *(gradient for gradient in encoder.get_gradients() if gradient is not None)])
    assert all(np.array_equal(one, other) for one, other in zip(*made, strict=True))
