"""The same training run in Mila and in PyTorch ends at the same validation loss.

Within 1 % is the promise; the two usually differ by less than a millionth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mila.core import BuildContext, RuntimeMode, TrainingMode
from mila.kernels.signatures import Array
from mila.models import GptConfig, LlamaConfig
from mila.training.adamw import AdamWConfig
from mila.training.corpus import TextCorpus, TokenSplit, split_tokens, standard_library_sources
from mila.training.data import TokenBatches, validation_batches
from mila.training.schedules import CosineSchedule
from mila.training.tokenization import ByteTokenizer
from tests.parity.model_cases import ModelCase, build_training_step, named_parameters, new_network

if TYPE_CHECKING:
    from tests.parity.torch_models import Tensor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

BATCH, LENGTH, STEPS = 4, 64, 150
SCHEDULE = CosineSchedule(initial=3e-3, final=3e-4, warmup_steps=15, total_steps=STEPS)
VALIDATION_BATCHES = 16
VOCAB_SIZE = ByteTokenizer().vocab_size

GPT = ModelCase(
    "trained_gpt",
    GptConfig(vocab_size=VOCAB_SIZE, embedding_dim=64, num_layers=2, num_heads=4, max_seq_len=LENGTH),
    AdamWConfig(beta2=0.95, weight_decay=0.1, maximum_norm=1.0),
    shape=(BATCH, LENGTH),
)
LLAMA = ModelCase(
    "trained_llama",
    LlamaConfig(
        vocab_size=VOCAB_SIZE,
        embedding_dim=64,
        hidden_dim=172,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        max_seq_len=LENGTH,
    ),
    AdamWConfig(beta2=0.95, weight_decay=0.1, maximum_norm=1.0),
    shape=(BATCH, LENGTH),
)


@pytest.fixture(scope="module")
def text() -> TokenSplit:
    """Bytes of this Python's own library, the last tenth held out."""
    corpus = TextCorpus(standard_library_sources(maximum_bytes=1_000_000), errors="skip")
    return split_tokens(corpus.tokens(ByteTokenizer()))


def initial_parameters(case: ModelCase) -> dict[str, Array]:
    """As Mila draws them."""
    network = new_network(case, "float32")
    network.build(BuildContext(case.shape, RuntimeMode.TRAINING))
    return named_parameters(network)


def train_mila(case: ModelCase, parameters: dict[str, Array], text: TokenSplit) -> tuple[float, float]:
    """The validation loss before and after training."""
    step = build_training_step(case, "float32", parameters, threads=1)

    def validate() -> float:
        step.set_training_mode(TrainingMode.EVAL)
        losses = [
            float(step.forward(ids, targets)[0])
            for ids, targets in validation_batches(text.validation, BATCH, LENGTH, VALIDATION_BATCHES)
        ]
        step.set_training_mode(TrainingMode.NORMAL)
        return float(np.mean(losses))

    before = validate()
    batches = TokenBatches(text.training, BATCH, LENGTH, seed=1)
    for index in range(STEPS):
        ids, targets = batches.next_batch()
        step.forward(ids, targets)
        step.zero_gradients()
        step.backward(ids, targets)
        step.update(SCHEDULE.learning_rate(index))
    return before, validate()


def train_torch(case: ModelCase, parameters: dict[str, Array], text: TokenSplit) -> tuple[float, float]:
    """The same in PyTorch, with PyTorch's own clipping."""
    from tests.parity.torch_models import cross_entropy
    from tests.parity.torch_runs import build_torch_model, new_optimizer

    model = build_torch_model(case, "float32", parameters)
    optimizer = new_optimizer(case, model)

    def loss_of(ids: Array, targets: Array) -> Tensor:
        return cross_entropy(model(torch.tensor(ids).long()), torch.tensor(targets).long())

    def validate() -> float:
        with torch.no_grad():
            losses = [
                loss_of(ids, targets).item()
                for ids, targets in validation_batches(text.validation, BATCH, LENGTH, VALIDATION_BATCHES)
            ]
        return float(np.mean(losses))

    before = validate()
    batches = TokenBatches(text.training, BATCH, LENGTH, seed=1)
    for index in range(STEPS):
        optimizer.zero_grad()
        loss_of(*batches.next_batch()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), case.optimizer.maximum_norm)
        for group in optimizer.param_groups:
            group["lr"] = SCHEDULE.learning_rate(index)
        optimizer.step()
    return before, validate()


@pytest.mark.parametrize("case", [GPT, LLAMA], ids=lambda case: case.name)
def test_training_runs_end_within_one_percent_of_each_other(case: ModelCase, text: TokenSplit) -> None:
    parameters = initial_parameters(case)
    mila_before, mila_after = train_mila(case, parameters, text)
    torch_before, torch_after = train_torch(case, parameters, text)
    assert math.isclose(mila_before, torch_before, rel_tol=1e-5)
    assert mila_after < 0.55 * mila_before  # it learned: from about log(256) to below what letter frequencies give
    assert math.isclose(mila_after, torch_after, rel_tol=0.01)
