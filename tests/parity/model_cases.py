"""The models that are compared with PyTorch, and the numbers they start from.

Everything is drawn from integers and scaled by powers of 2, so that the same bits come out on every machine and fit
float32 and float64 alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mila.components import Llama3Scaling, SoftmaxCrossEntropy, SoftmaxCrossEntropyConfig
from mila.core import BuildContext, RuntimeMode, TrainingStep
from mila.devices import ExecutionContext
from mila.kernels.signatures import Array
from mila.models import GptConfig, GptTransformer, LlamaConfig, LlamaTransformer
from mila.training.adamw import AdamW, AdamWConfig
from mila.training.schedules import CosineSchedule

GOLDEN = Path(__file__).parent / "golden"
STEPS = 10
SCHEDULE = CosineSchedule(initial=1e-2, final=1e-3, warmup_steps=3, total_steps=STEPS)
IGNORED = -100

#: Attention does not depend on the biases of its keys: their gradient is rounding noise, and AdamW would turn noise as
#: large as its epsilon into steps as large as the learning rate. So where there are biases, epsilon is above the noise.
ABOVE_NOISE = 1e-5

#: Besides the default, which all other cases have.
ATTENTION_SCALINGS: tuple[Literal["none", "head_dim_and_layer"], ...] = ("none", "head_dim_and_layer")


@dataclass(frozen=True)
class ModelCase:
    """A model, its optimizer and the shape of its batches.

    Attributes:
        ignored: how many targets of each row are masked with :data:`IGNORED`; none at 0.
    """

    name: str
    config: GptConfig | LlamaConfig
    optimizer: AdamWConfig = field(default_factory=AdamWConfig)
    shape: tuple[int, int] = (2, 13)
    ignored: int = 0

    @property
    def seed(self) -> int:
        """Of everything drawn for the case."""
        return int.from_bytes(self.name.encode(), "little") % 2**32

    @property
    def ignore_index(self) -> int | None:
        """What masked targets hold; ``None`` where there are none."""
        return IGNORED if self.ignored else None


MODEL_CASES = (
    ModelCase(
        "gpt_tied",
        GptConfig(vocab_size=37, embedding_dim=24, hidden_dim=40, num_layers=1, num_heads=3, max_seq_len=16),
        AdamWConfig(epsilon=ABOVE_NOISE, weight_decay=0.1),
    ),
    ModelCase(
        "gpt_untied_without_bias",
        GptConfig(
            vocab_size=37,
            embedding_dim=12,
            hidden_dim=20,
            num_layers=2,
            num_heads=3,
            max_seq_len=13,
            bias=False,
            activation="gelu",
            norm_epsilon=1e-6,
            tie_word_embeddings=False,
        ),
        AdamWConfig(beta1=0.8, beta2=0.95, weight_decay=0.2),
        shape=(3, 13),
        ignored=4,
    ),
    ModelCase(
        "gpt_clipped",
        GptConfig(
            vocab_size=37,
            embedding_dim=14,
            hidden_dim=10,
            num_layers=2,
            num_heads=1,
            max_seq_len=13,
            activation="quick_gelu",
        ),
        AdamWConfig(epsilon=ABOVE_NOISE, decay_everything=True, maximum_norm=0.5),
        shape=(1, 13),
    ),
    ModelCase(
        "llama_untied",
        LlamaConfig(
            vocab_size=37, embedding_dim=18, hidden_dim=20, num_layers=1, num_heads=3, num_kv_heads=1, max_seq_len=13
        ),
        AdamWConfig(weight_decay=0.1),
    ),
    ModelCase(
        "llama_tied_window",
        LlamaConfig(
            vocab_size=37,
            embedding_dim=12,
            hidden_dim=20,
            num_layers=2,
            num_heads=3,
            num_kv_heads=3,
            head_dim=6,
            max_seq_len=32,
            rope_theta=500.0,
            norm_epsilon=1e-6,
            sliding_window=4,
            tie_word_embeddings=True,
        ),
        AdamWConfig(maximum_norm=1.0),
        shape=(2, 13),
        ignored=2,
    ),
    ModelCase(
        "llama_every_option",
        LlamaConfig(
            vocab_size=17,
            embedding_dim=8,
            hidden_dim=10,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=6,
            max_seq_len=13,
            rope_theta=500.0,
            rope_scaling=Llama3Scaling(
                factor=8.0, low_frequency_factor=0.5, high_frequency_factor=4.0, original_max_seq_len=100
            ),
            sliding_window=4,
            sliding_layers=(1,),
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            qk_norm=True,
            gate_activation="gelu_tanh",
        ),
        AdamWConfig(epsilon=ABOVE_NOISE),
    ),
    *(
        ModelCase(
            f"gpt_attention_scaling_{scaling}",
            GptConfig(
                vocab_size=17,
                embedding_dim=8,
                hidden_dim=10,
                num_layers=2,
                num_heads=2,
                max_seq_len=13,
                attention_scaling=scaling,
            ),
            AdamWConfig(epsilon=ABOVE_NOISE),
        )
        for scaling in ATTENTION_SCALINGS
    ),
)


def uniform(generator: np.random.Generator, shape: tuple[int, ...], magnitude: float = 1.0) -> NDArray[np.float64]:
    """Values in [-magnitude, magnitude), multiples of magnitude * 2**-22; ``magnitude`` is a power of 2."""
    integers = generator.integers(-(2**22), 2**22, shape, dtype=np.int64)
    return np.multiply(integers, magnitude * 2.0**-22, dtype=np.float64)


def new_network(case: ModelCase, dtype: str, threads: int | None = None) -> GptTransformer | LlamaTransformer:
    """The network of a case, not built."""
    network: GptTransformer | LlamaTransformer
    if isinstance(case.config, GptConfig):
        network = GptTransformer("model", case.config, dtype=dtype)
    else:
        network = LlamaTransformer("model", case.config, dtype=dtype)
    network.set_execution_context(ExecutionContext("cpu", threads=threads))
    return network


def parameter_shapes(case: ModelCase) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a case's parameters."""
    network = new_network(case, "float32")
    return {
        component.state_name(declaration.name): declaration.shape
        for component in network.walk()
        for declaration in component.parameters()
    }


def draw_parameters(case: ModelCase) -> dict[str, Array]:
    """Initial parameters, float32; large enough that every part of the model matters."""
    generator = np.random.default_rng(case.seed)
    drawn = {}
    for name, shape in parameter_shapes(case).items():
        is_norm_weight = name.endswith("weight") and len(shape) == 1
        values = uniform(generator, shape, 0.25) + (1.0 if is_norm_weight else 0.0)
        drawn[name] = values.astype(np.float32)
    return drawn


def draw_tokens(case: ModelCase) -> dict[str, Array]:
    """Ids and targets (STEPS, B, T) for all steps, int32."""
    generator = np.random.default_rng(case.seed + 1)
    shape = (STEPS, *case.shape)
    ids, targets = generator.integers(0, case.config.vocab_size, (2, *shape)).astype(np.int32)
    if case.ignored:
        targets[..., : case.ignored] = IGNORED
    return {"ids": ids, "targets": targets}


def build_training_step(
    case: ModelCase, dtype: str, parameters: Mapping[str, Array], threads: int | None = None
) -> TrainingStep:
    """Mila's training step of a case with the given parameters."""
    loss = SoftmaxCrossEntropy("loss", SoftmaxCrossEntropyConfig(ignore_index=case.ignore_index))
    step = TrainingStep(new_network(case, dtype, threads), loss, AdamW(case.optimizer))
    step.build(BuildContext(case.shape, RuntimeMode.TRAINING, initialize_parameters=False))
    load_all(step, parameters)
    return step


def load_all(component: Any, parameters: Mapping[str, Array]) -> None:
    """Load exactly the parameters that a component has."""
    names = component.get_parameter_names()
    if sorted(names) != sorted(parameters):
        raise ValueError(f"expected the parameters {sorted(names)}, got {sorted(parameters)}")
    for name in names:
        component.load_parameter(name, parameters[name])


def named_gradients(component: Any) -> dict[str, Array]:
    """Copies of all gradients by name."""
    pairs = zip(component.get_parameter_names(), component.get_gradients(), strict=True)
    return {name: gradient.copy() for name, gradient in pairs}


def named_parameters(component: Any) -> dict[str, Array]:
    """Copies of all parameters by name."""
    pairs = zip(component.get_parameter_names(), component.get_parameters(), strict=True)
    return {name: parameter.copy() for name, parameter in pairs}


def run_steps(step: TrainingStep, tokens: Mapping[str, Array]) -> tuple[Array, Array]:
    """Losses and gradient norms of :data:`STEPS` steps, over ``ids`` and ``targets`` (STEPS, B, T)."""
    losses, norms = [], []
    for index in range(STEPS):
        ids, targets = tokens["ids"][index], tokens["targets"][index]
        losses.append(float(step.forward(ids, targets)[0]))
        step.zero_gradients()
        step.backward(ids, targets)
        norms.append(step.update(SCHEDULE.learning_rate(index)))
    return np.array(losses, step.dtype), np.array(norms)


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference, relative to the largest magnitude of ``expected``; where that is 0, absolute."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise ValueError(f"expected {expected.dtype} {expected.shape}, got {actual.dtype} {actual.shape}")
    difference = float(np.max(np.abs(actual.astype(np.float64) - expected), initial=0.0))
    scale = float(np.max(np.abs(expected), initial=0.0))
    return difference / scale if scale else difference
