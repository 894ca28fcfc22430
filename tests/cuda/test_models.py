"""Models on the emulated device: ten training steps, checkpoints, files and generated tokens are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mila.components import SoftmaxCrossEntropy
from mila.core import BuildContext, RuntimeMode, TrainingStep
from mila.models import GptConfig, GptTransformer, LanguageModel, LlamaConfig, LlamaTransformer, from_pretrained
from mila.training import AdamW, AdamWConfig
from tests.cuda.test_components import NoRoom
from tests.promises.case import Array

if TYPE_CHECKING:
    from mila.devices.cuda import CudaDevice

VOCABULARY, LENGTH = 31, 8
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "max_seq_len": 16, "embedding_dim": 16, "num_layers": 2}
#: Largest difference from the CPU, relative to the largest number, or to one.
TOLERANCE = 1e-4
CPU, CUDA = "cpu", "cuda:0"


def gpt(device: str) -> LanguageModel[Any]:
    return GptTransformer("gpt", GptConfig(**SIZES, num_heads=2), device=device, seed=3)


def llama(device: str) -> LanguageModel[Any]:
    return LlamaTransformer(
        "llama", LlamaConfig(**SIZES, num_heads=4, num_kv_heads=2, hidden_dim=24), device=device, seed=3
    )


#: The emulated device serves by itself; a real one only those who ask for it.
pytestmark = pytest.mark.usefixtures("cuda")

both_models = pytest.mark.parametrize("construct", [gpt, llama])
Construct = Callable[[str], LanguageModel[Any]]


def trained(construct: Construct, device: str, steps: int) -> tuple[TrainingStep, list[float]]:
    """Return a training step after ``steps`` updates, and every loss and every norm of the gradients."""
    step = TrainingStep(construct(device), SoftmaxCrossEntropy("loss"), AdamW(AdamWConfig(maximum_norm=1.0)))
    step.build(BuildContext((2, LENGTH), RuntimeMode.TRAINING))
    generator, seen = np.random.default_rng(0), []
    for _ in range(steps):
        batch = [step.device.to_device(generator.integers(0, VOCABULARY, (2, LENGTH), np.int32)) for _ in range(2)]
        step.zero_gradients()
        seen.append(float(step.device.download(step.forward(*batch))[0]))
        step.backward(*batch)
        seen.append(step.update(0.01))
    return step, seen


def parameters(step: TrainingStep) -> list[Array]:
    return [step.device.download(array) for array in step.get_parameters()]


def difference(a: Array, b: Array) -> float:
    return float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(a))))


@both_models
def test_ten_steps_of_training_are_those_of_the_cpu(construct: Construct) -> None:
    (expected, seen), (got, losses) = (trained(construct, device, 10) for device in (CPU, CUDA))
    np.testing.assert_allclose(losses, seen, rtol=TOLERANCE)
    for a, b in zip(parameters(expected), parameters(got), strict=True):
        assert difference(a, b) <= TOLERANCE


@both_models
def test_a_trained_model_is_saved_loaded_and_continues_a_prompt_as_on_the_cpu(
    construct: Construct, tmp_path: Path
) -> None:
    step, _ = trained(construct, CUDA, 3)
    step.network.save_pretrained(tmp_path / "model")  # type: ignore[attr-defined]
    models = [from_pretrained(tmp_path / "model", device=device, context_length=16) for device in (CPU, CUDA)]
    tokens = []
    for model in models:
        assert isinstance(model, LanguageModel)
        tokens.append(model.generate([1, 2, 3], max_new_tokens=8, temperature=0.0).tokens)
    assert tokens[0] == tokens[1]
    for saved, loaded in zip(parameters(step), models[1].get_parameters(), strict=True):
        np.testing.assert_array_equal(models[1].device.download(loaded), saved)


@both_models
@pytest.mark.parametrize("chunk", [3, 16])
def test_prompts_in_chunks_are_continued_as_on_the_cpu(construct: Construct, chunk: int) -> None:
    """Two rows of different lengths: a prompt of several chunks, or of one, and then token after token."""
    prompts, written = [[5, 1, 7, 7, 2, 11, 30, 4], [9, 0]], []
    for device in (CPU, CUDA):
        model = construct(device)
        options: dict[str, Any] = {"initialize_parameters": True, "prefill_size": chunk}
        model.build(BuildContext((len(prompts), 16), RuntimeMode.INFERENCE, **options))
        written.append([completion.tokens for completion in model.generate(prompts, max_new_tokens=7)])
    assert written[0] == written[1]
    assert all(len(tokens) == 7 for tokens in written[0])


@both_models
def test_a_chunk_and_a_step_of_decoding_allocate_nothing(
    construct: Construct, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = construct(CUDA)
    options: dict[str, Any] = {"initialize_parameters": True, "prefill_size": 3}
    model.build(BuildContext((2, 16), RuntimeMode.INFERENCE, **options))
    session = model.decoding_session
    monkeypatch.setattr(cuda, "pool", NoRoom())
    session.prefill([[5, 1, 7, 2], [9, 2]])
    for _ in range(3):
        session.step([3, 4])
    cuda.synchronize()


def test_the_models_have_what_attention_offers() -> None:
    """Grouped heads that turn, and a head that shares the table of the embedding."""
    first, second = gpt(CPU).config, llama(CPU).config
    assert first.tie_word_embeddings and not second.tie_word_embeddings
    assert second.num_heads == 2 * second.num_kv_heads


def test_the_same_seed_gives_the_same_weights_on_both_devices() -> None:
    on_cpu, on_cuda = (trained(gpt, device, 0)[0] for device in (CPU, CUDA))
    for a, b in zip(parameters(on_cpu), parameters(on_cuda), strict=True):
        np.testing.assert_array_equal(a, b)
