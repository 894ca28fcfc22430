"""Tables stored as float8_e4m3fn with one float32 scale per row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mila.components import Linear, LinearConfig, TokenEmbedding, TokenEmbeddingConfig
from mila.core import BuildContext, ComponentConfig, Graph, Network, Port, Reference, RuntimeMode
from mila.core.state import TensorSavePass
from mila.errors import CheckpointError, ConfigurationError, DTypeError, LifecycleError, MilaError, ShapeError
from mila.quantization import PerChannelFp8
from mila.serialization import SafetensorsFile, SafetensorsWriter, save_tensors

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
V, C = 11, 6
CONFIG = TokenEmbeddingConfig(vocab_size=V, embedding_dim=C, table_quantization=PerChannelFp8())
IDS = np.arange(V, dtype=np.int32)[None]
INFERENCE = BuildContext((1, V), RuntimeMode.INFERENCE, prefill_size=V)


def values(seed: int = 0) -> NDArray[np.float32]:
    found = np.random.default_rng(seed).standard_normal((V, C)).astype(np.float32)
    found[4] = 0
    found[5] *= 1e4
    return found


def built(config: TokenEmbeddingConfig = CONFIG, dtype: str = "float32") -> TokenEmbedding:
    embedding = TokenEmbedding("wte", config, device="cpu", dtype=dtype)
    embedding.build(INFERENCE)
    return embedding


def scales_of(table: NDArray[Any]) -> NDArray[np.float32]:
    largest = np.abs(table).max(axis=1).astype(np.float32)
    return np.where(largest > 0, largest / np.float32(448), np.float32(1)).astype(np.float32)


def dequantized(embedding: TokenEmbedding) -> NDArray[np.float32]:
    scales = embedding.get_weight_scales_tensor_shared()
    assert scales is not None
    return embedding.get_weight_tensor_shared().astype(np.float32) * scales[:, None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stored", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_floats_are_quantized_row_by_row_when_loaded(dtype: str, stored: Any) -> None:
    embedding, table = built(dtype=dtype), values().astype(stored)
    embedding.load_parameter("wte", table)
    scales = embedding.get_weight_scales_tensor_shared()
    assert scales is not None
    assert (embedding.get_weight_tensor_shared().dtype, scales.dtype, scales.shape) == (FP8, np.dtype(np.float32), (V,))
    assert np.array_equal(scales, scales_of(table.astype(np.float32)))
    assert scales[4] == 1
    wide = table.astype(np.float32)
    # e4m3 keeps 3 bits of mantissa: at most half of a sixteenth of the largest binade off.
    assert (np.abs(dequantized(embedding) - wide).max(axis=1) <= np.abs(wide).max(axis=1) / 28).all()
    output = embedding.forward(IDS)
    assert output.dtype == dtype
    assert np.allclose(output[0], dequantized(embedding), rtol=1e-6)


def test_the_largest_value_of_each_row_is_exact() -> None:
    embedding, table = built(), values()
    embedding.load_parameter("wte", table)
    codes = embedding.get_weight_tensor_shared().astype(np.float32)
    nonzero = np.abs(table).max(axis=1) > 0
    assert np.array_equal(np.abs(codes[nonzero]).max(axis=1), np.full(V - 1, 448, np.float32))


def test_bytes_are_taken_as_they_are_with_their_scales() -> None:
    embedding = built()
    codes = np.clip(values(), -448, 448).astype(FP8)
    scales = np.linspace(0.5, 2, V, dtype=np.float32)
    embedding.load_parameter("wte", codes)
    with pytest.raises(LifecycleError, match="wte_scale"):
        embedding.forward(IDS)
    embedding.load_parameter("wte_scale", scales)
    assert embedding.get_weight_tensor_shared().tobytes() == codes.tobytes()
    found = embedding.get_weight_scales_tensor_shared()
    assert found is not None
    assert np.array_equal(found, scales)
    assert np.allclose(embedding.forward(IDS)[0], codes.astype(np.float32) * scales[:, None], rtol=1e-6)


def test_scales_of_floats_do_not_serve_bytes_loaded_after_them() -> None:
    embedding = built()
    embedding.load_parameter("wte", values())
    embedding.load_parameter("wte", values().astype(FP8))
    with pytest.raises(LifecycleError, match="wte_scale"):
        embedding.forward(IDS)
    embedding.load_parameter("wte_scale", np.ones(V, np.float32))
    embedding.forward(IDS)


def test_scales_for_a_table_that_was_quantized_here_are_refused() -> None:
    embedding = built()
    embedding.load_parameter("wte", values())
    expected = embedding.forward(IDS).copy()
    with pytest.raises(DTypeError):
        embedding.load_parameter("wte_scale", np.ones(V, np.float32))
    assert np.array_equal(embedding.forward(IDS), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_table_that_is_not_finite_is_not_quantized(bad: float) -> None:
    embedding, table = built(), values()
    embedding.load_parameter("wte", table)
    before = embedding.get_weight_tensor_shared().tobytes()
    table = table.copy()
    table[7, 2] = bad
    with pytest.raises(MilaError, match="finite"):
        embedding.load_parameter("wte", table)
    assert embedding.get_weight_tensor_shared().tobytes() == before


@pytest.mark.parametrize("never", [np.int32, np.int8, np.uint8, np.bool_, ml_dtypes.float8_e5m2])
def test_what_is_neither_float_nor_e4m3_is_refused(never: Any) -> None:
    embedding = built()
    with pytest.raises(DTypeError):
        embedding.load_parameter("wte", np.ones((V, C), never))
    with pytest.raises(DTypeError):
        embedding.load_parameter("wte_scale", np.ones(V, never))
    with pytest.raises(LifecycleError):
        embedding.forward(IDS)


def test_it_is_refused_in_training() -> None:
    embedding = TokenEmbedding("wte", CONFIG, device="cpu")
    for call in (embedding.plan, embedding.build):
        with pytest.raises(LifecycleError, match="is for inference"):
            call(BuildContext((1, V), RuntimeMode.TRAINING))


def test_a_plain_table_has_no_scales_and_takes_none() -> None:
    plain = built(TokenEmbeddingConfig(vocab_size=V, embedding_dim=C))
    assert plain.get_weight_scales_tensor_shared() is None
    with pytest.raises(CheckpointError, match="no parameter 'wte_scale'"):
        plain.load_parameter("wte_scale", np.ones(V, np.float32))
    with pytest.raises(DTypeError, match="never converted"):
        plain.load_parameter("wte", values().astype(FP8))


def test_its_bytes_are_in_the_plan_and_its_parameters_are_counted_without_scales() -> None:
    embedding = TokenEmbedding("wte", CONFIG, device="cpu")
    assert embedding.parameter_count() == V * C
    assert embedding.get_parameter_names() == ["wte"]
    required = embedding.get_required_memory(INFERENCE)
    assert required.device_parameter_bytes == V * C + 4 * V
    plain = TokenEmbedding("wte", TokenEmbeddingConfig(vocab_size=V, embedding_dim=C))
    assert plain.get_required_memory(INFERENCE).device_parameter_bytes == 4 * V * C
    embedding.build(INFERENCE)
    assert embedding.get_memory_stats() == required


def test_zeros_are_drawn_where_parameters_are_initialised() -> None:
    embedding = TokenEmbedding("wte", CONFIG, device="cpu")
    embedding.build(BuildContext((1, V), RuntimeMode.INFERENCE, prefill_size=V, initialize_parameters=True))
    scales = embedding.get_weight_scales_tensor_shared()
    assert scales is not None
    assert np.array_equal(scales, np.ones(V))
    assert not embedding.forward(IDS).any()


class QuantizedModel(Network[ComponentConfig]):
    """A quantized table and the head that is tied to it."""

    config_class = ComponentConfig
    ports = (Port("ids", is_ids=True),)

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        embedding = TokenEmbedding("wte", CONFIG)
        head = LinearConfig(in_features=C, out_features=V, bias=True)
        return graph.add(Linear("head", head, tied_to=embedding), graph.add(embedding, *inputs))


def model() -> QuantizedModel:
    network = QuantizedModel("model", ComponentConfig(), device="cpu")
    network.build(BuildContext((1, V), RuntimeMode.INFERENCE))
    return network


def stored(path: Path, **tensors: NDArray[Any]) -> Path:
    save_tensors(path, {name.replace("__", "."): array for name, array in tensors.items()})
    return path


BIAS = np.linspace(-1, 1, V, dtype=np.float32)


def test_a_file_of_floats_and_a_file_of_bytes_with_scales_give_the_same(tmp_path: Path) -> None:
    first, second = model(), model()
    report = first.load_weights(stored(tmp_path / "floats.safetensors", wte__wte=values(), head__bias=BIAS))
    assert dict(report.converted) == {"wte.wte": "float32"}
    first.save_weights(tmp_path / "saved.safetensors")
    with SafetensorsFile(tmp_path / "saved.safetensors") as file:
        assert sorted(file.tensors) == ["head.bias", "wte.wte", "wte.wte_scale"]
        assert file.read("wte.wte").dtype == FP8
        assert np.array_equal(file.read("wte.wte_scale"), scales_of(values()))
    report = second.load_weights(tmp_path / "saved.safetensors")
    assert dict(report.converted) == {}
    assert np.array_equal(first.forward(IDS), second.forward(IDS))


def test_a_tied_head_computes_with_the_quantized_table() -> None:
    network = model()
    network.load_parameter("wte.wte", values())
    network.load_parameter("head.bias", BIAS)
    embedding = network["wte"]
    assert isinstance(embedding, TokenEmbedding)
    table = dequantized(embedding)
    assert np.allclose(network.forward(IDS)[0], table @ table.T + BIAS, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"wte__wte": values().astype(FP8)}, "without wte_scale"),
        ({"wte__wte": values(), "wte__wte_scale": np.ones(V, np.float32)}, "wte.wte_scale"),
        ({"wte__wte": np.full((V, C), np.nan, np.float32)}, "finite"),
        ({"wte__wte_scale": np.ones(V, np.float32)}, "missing wte.wte"),
        ({"wte__wte": values().astype(FP8), "wte__wte_scale": np.ones(V, np.int32)}, "wte.wte_scale"),
        ({"wte__wte": values().astype(FP8), "wte__wte_scale": np.ones((V, 1), np.float32)}, "expected shape"),
        ({"wte__wte": np.ones((V, C), np.int8)}, "never converted"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, tensors: dict[str, NDArray[Any]], message: str
) -> None:
    network = model()
    network.load_weights(stored(tmp_path / "good.safetensors", wte__wte=values(), head__bias=BIAS))
    before = network.forward(IDS).copy()
    path = stored(tmp_path / "bad.safetensors", head__bias=BIAS * 2, **tensors)
    with pytest.raises(CheckpointError, match=message):
        network.load_weights(path)
    assert np.array_equal(network.forward(IDS), before)


def test_flat_tensors_hold_the_table_and_its_scales(tmp_path: Path) -> None:
    embedding = built()
    embedding.load_parameter("wte", values())
    with SafetensorsWriter(tmp_path / "flat.safetensors") as writer:
        embedding.save_flat_tensors(writer, "transformer", TensorSavePass.DECLARE)
        writer.begin()
        embedding.save_flat_tensors(writer, "transformer", TensorSavePass.WRITE)
    with SafetensorsFile(tmp_path / "flat.safetensors") as file:
        assert sorted(file.tensors) == ["transformer.wte", "transformer.wte_scale"]


# ---------------------------------------------------------------------- shared weights


def shared(bias: bool = False, dtype: str = "float32") -> Linear:
    config = LinearConfig(in_features=C, out_features=V, bias=bias, shared_weight=True)
    linear = Linear("head", config, device="cpu", dtype=dtype)
    linear.build(BuildContext((2, C), RuntimeMode.INFERENCE, initialize_parameters=True))
    return linear


X = np.random.default_rng(2).standard_normal((2, C)).astype(np.float32)


def test_a_linear_with_a_shared_weight_declares_none_and_refuses_to_run_without() -> None:
    linear = shared()
    assert linear.get_parameter_names() == []
    assert linear.parameter_count() == 0
    with pytest.raises(LifecycleError, match="has no weight yet; call install_shared_weight"):
        linear.forward(X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_linear_computes_with_the_table_of_another_root(dtype: str) -> None:
    embedding, linear = built(dtype=dtype), shared(dtype=dtype)
    embedding.load_parameter("wte", values())
    linear.install_shared_weight(embedding.get_weight_tensor_shared(), embedding.get_weight_scales_tensor_shared())
    x = X.astype(dtype)
    expected = x @ dequantized(embedding).T
    assert np.allclose(linear.forward(x), expected, rtol=1e-4, atol=1e-2)
    held = linear.get_memory_stats()
    assert held == linear.get_required_memory(BuildContext((2, C), RuntimeMode.INFERENCE))
    assert held.device_parameter_bytes == 0


def test_a_linear_computes_with_a_plain_table() -> None:
    linear = shared(bias=True)
    linear.install_shared_weight(values())
    assert np.allclose(linear.forward(X), X @ values().T, rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "scales", "error"),
    [
        (values().T.copy(), None, ShapeError),
        (values().astype(FP8), np.ones(C, np.float32), ShapeError),
        (values().astype(FP8), None, DTypeError),
        (values(), np.ones(V, np.float32), DTypeError),
        (values().astype(np.float64), None, DTypeError),
        (values().astype(FP8), np.ones(V, np.float64), DTypeError),
        (np.ones((V, C), np.int32), None, DTypeError),
    ],
)
def test_a_table_that_does_not_fit_is_not_installed(table: Any, scales: Any, error: type[Exception]) -> None:
    linear = shared()
    with pytest.raises(error, match=r"head: .*expected"):
        linear.install_shared_weight(table, scales)
    with pytest.raises(LifecycleError):
        linear.forward(X)


def test_a_table_that_is_not_contiguous_is_not_installed() -> None:
    with pytest.raises(ShapeError, match="contiguous"):
        shared().install_shared_weight(np.asfortranarray(values()))


def test_a_linear_with_a_weight_of_its_own_takes_no_other() -> None:
    linear = Linear("head", LinearConfig(in_features=C, out_features=V), device="cpu")
    with pytest.raises(ConfigurationError, match=r"needs LinearConfig\(shared_weight=True\)"):
        linear.install_shared_weight(values())
