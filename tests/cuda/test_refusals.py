"""What a device cannot do is refused before anything is allocated, and errors of its kernels name the component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila.components import (
    Attention,
    AttentionConfig,
    ContextAttention,
    ContextAttentionConfig,
    Linear,
    LinearConfig,
    Pad,
    PadConfig,
    Permute,
    PermuteConfig,
    Rope,
    RopeConfig,
    SoftmaxCrossEntropy,
)
from mila.core import BuildContext, Component, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from mila.errors import DeviceError
from mila.models import GptConfig, GptTransformer
from mila.training import AdamW
from tests.cuda.conftest import Emulated
from tests.promises.case import INFERENCE, TRAINING

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

LARGE_HEADS = GptConfig(vocab_size=5, embedding_dim=514, num_layers=1, num_heads=2, max_seq_len=4)
SMALL = GptConfig(vocab_size=5, embedding_dim=6, num_layers=1, num_heads=2, max_seq_len=4)
NINE = (1, 2, 1, 2, 1, 2, 1, 2, 3)
BACKWARDS = tuple(range(8, 0, -1))

#: What is built, for which shapes, and what the error says.
REFUSED: list[tuple[Any, Any, str]] = [
    (
        lambda: GptTransformer("gpt", LARGE_HEADS),
        (1, 4),
        r"gpt\.\S+: attention on CUDA takes heads of at most 256 .* 257",
    ),
    (
        lambda: Attention("attention", AttentionConfig(num_heads=1, num_kv_heads=1, head_dim=300)),
        (1, 4, 900),
        "attention: attention on CUDA takes heads of at most 256 elements, got 300",
    ),
    (
        lambda: ContextAttention("cross", ContextAttentionConfig(num_heads=1, head_dim=300)),
        {"queries": (1, 4, 300), "keys": (1, 4, 300), "values": (1, 4, 300)},
        "cross: attention on CUDA takes heads of at most 256 elements, got 300",
    ),
    (
        lambda: Permute("turn", PermuteConfig(axes=BACKWARDS)),
        NINE,
        r"turn: the device takes arrays of at most 8 axes, got \(1, 2,",
    ),
    (
        lambda: Pad("pad", PadConfig(pairs=((1, 1),) * 8)),
        NINE,
        r"pad: the device takes arrays of at most 8 axes, got \(1, 2,",
    ),
]


@pytest.mark.parametrize("mode", [INFERENCE, TRAINING], ids=lambda mode: mode.value)
@pytest.mark.parametrize(("make", "shape", "message"), REFUSED, ids=[message[:12] for _, _, message in REFUSED])
def test_what_a_device_cannot_do_is_refused_before_anything_is_allocated(
    make: Any, shape: Any, message: str, mode: RuntimeMode, context: ExecutionContext, cuda: CudaDevice
) -> None:
    component: Component[Any] = make()
    component.set_execution_context(context)
    before = cuda.used_bytes()
    for ask in (component.plan, component.build):
        with pytest.raises(DeviceError, match=f"^{message}"):
            ask(BuildContext(shape, mode))
    assert cuda.used_bytes() == before
    assert not component.is_built


#: Inputs of attention, in widths of a head.
PACKED, APART = {"input": 3}, {"queries": 1, "keys": 1, "values": 1}


@pytest.mark.parametrize(
    ("make", "widths"),
    [
        (lambda size: Attention("heads", AttentionConfig(num_heads=1, num_kv_heads=1, head_dim=size)), PACKED),
        (lambda size: ContextAttention("heads", ContextAttentionConfig(num_heads=1, head_dim=size)), APART),
    ],
    ids=["attention", "context_attention"],
)
@pytest.mark.parametrize(("mode", "largest"), [(INFERENCE, 128), (TRAINING, 64)], ids=str)
def test_heads_whose_tiles_a_block_has_no_room_for_are_refused_while_planning(
    make: Any,
    widths: dict[str, int],
    mode: RuntimeMode,
    largest: int,
    context: ExecutionContext,
    cuda: CudaDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on devices of compute capability 8.6, 8.9 and 12.0."""
    monkeypatch.setattr(cuda, "most_shared_bytes", 99 << 10)

    def plan(head_dim: int) -> None:
        component: Component[Any] = make(head_dim)
        component.set_execution_context(context)
        component.plan(BuildContext({name: (1, 4, width * head_dim) for name, width in widths.items()}, mode))

    plan(largest)
    said = rf"^heads: attention on CUDA takes [\d,]+ bytes of shared memory for heads of {largest + 1} .* 101,376$"
    with pytest.raises(DeviceError, match=said):
        plan(largest + 1)


def test_eight_axes_are_computed(context: ExecutionContext, cuda: CudaDevice) -> None:
    axes = (7, 6, 5, 4, 3, 2, 1)
    turn = Permute("turn", PermuteConfig(axes=axes))
    turn.set_execution_context(context)
    x = np.arange(256, dtype=np.float32).reshape((2,) * 8)
    turn.build(BuildContext(x.shape, INFERENCE))
    np.testing.assert_array_equal(cuda.download(turn.forward(cuda.to_device(x))), x.transpose(0, *axes))


def refuse(monkeypatch: pytest.MonkeyPatch, cuda: CudaDevice, source: str) -> None:
    """Let launches of one kernel file fail as those do that a driver refuses."""
    launch = cuda.launch

    def failing(name: str, kernel: str, *rest: Any) -> None:
        if name == source:
            raise DeviceError(f"{name}.cu: kernel {kernel}: refused")
        launch(name, kernel, *rest)

    monkeypatch.setattr(cuda, "launch", failing)


@pytest.mark.parametrize(
    ("source", "call", "path"),
    [
        ("embedding", "forward", "gpt.embedding"),
        ("attention", "forward", "gpt.block_0.attention"),
        ("attention_backward", "backward", "gpt.block_0.attention"),
        ("optimizer", "update", "training_step"),
    ],
)
def test_a_kernel_that_fails_is_told_with_the_component_that_called_it(
    source: str, call: str, path: str, context: ExecutionContext, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = GptTransformer("gpt", SMALL)
    network.set_execution_context(context)
    step = TrainingStep(network, SoftmaxCrossEntropy("loss"), AdamW())
    step.build(BuildContext((1, 4), TRAINING))
    ids = [cuda.to_device(np.zeros((1, 4), np.int32)) for _ in range(2)]
    refuse(monkeypatch, cuda, source)
    with pytest.raises(DeviceError, match=rf"^{path}: {source}.cu: kernel \w+: refused$"):
        step.forward(*ids)
        step.backward(*ids)
        step.update(0.1)
        raise AssertionError(f"{call} did not fail")
    cuda.synchronize()  # products know addresses only: the arrays must be there until then


def test_so_is_one_that_fails_in_a_step_of_decoding(
    context: ExecutionContext, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = GptTransformer("gpt", SMALL)
    network.set_execution_context(context)
    network.build(BuildContext((1, 4), INFERENCE, initialize_parameters=True))
    ids = cuda.to_device(np.zeros((1, 1), np.int32))
    network.forward(ids)
    refuse(monkeypatch, cuda, "attention_cached")
    with pytest.raises(DeviceError, match=r"^gpt\.block_0\.attention: attention_cached.cu: kernel \w+: refused$"):
        network.forward(ids)
    cuda.synchronize()


def test_and_one_that_fails_while_tables_are_made(
    context: ExecutionContext, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = Rope("rope", RopeConfig(num_heads=1, num_kv_heads=1, head_dim=4, max_seq_len=4))
    rope.set_execution_context(context)
    refuse(monkeypatch, cuda, "rope")
    with pytest.raises(DeviceError, match=r"^rope: rope.cu: kernel rope_table: refused$"):
        rope.build(BuildContext((1, 4, 12), INFERENCE))
    assert not rope.is_built


def test_a_product_that_cublas_refuses_is_told_with_its_shapes(
    emulated: Emulated, context: ExecutionContext, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")

    layer = Linear("layer", LinearConfig(in_features=6, out_features=4))
    layer.set_execution_context(context)
    layer.build(BuildContext((5, 6), TRAINING))
    monkeypatch.setattr(cuda._products._cublas, "gemmEx", fail)
    refused = r"^layer: matrix product: cuda:0 refused \(5, 4\) = \(5, 6\) @ \(4, 6\)ᵀ: CUBLAS_STATUS_EXECUTION_FAILED"
    with pytest.raises(DeviceError, match=refused):
        layer.forward(cuda.to_device(np.zeros((5, 6), np.float32)))
