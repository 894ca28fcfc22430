"""Cases of the mixture of experts.

The choice of experts jumps where two scores are equal. Scores are sums of some products of inputs and weights, so that
two of them are hardly ever closer than the 1e-6 by which central differences move one number; a case where they are
would be seen as a wrong gradient.
"""

from __future__ import annotations

from typing import Any, get_args

from mila.components import Add, MixtureOfExperts, MixtureOfExpertsConfig
from mila.components.activation import ActivationKind
from mila.core import CompositeComponent, Graph, Reference
from mila.errors import ShapeError
from tests.promises.case import INFERENCE, Case, Refused, family
from tests.promises.leaf_cases import SEQUENCES, widths
from tests.promises.refused_cases import build_refusal, config_refusal
from tests.promises.structures import WIDTH, EmptyConfig, linear, structure

EXPERTS: dict[str, Any] = {"embedding_dim": 6, "hidden_dim": 5, "num_experts": 4}
CHOICES: list[dict[str, Any]] = [{}, {"top_k": 1}, {"top_k": 3}, {"top_k": 4}, {"trainable": False}]
KINDS: list[dict[str, Any]] = [{"activation": kind} for kind in get_args(ActivationKind)]
SINGLE: dict[str, Any] = {"embedding_dim": 3, "hidden_dim": 1, "num_experts": 1, "top_k": 1}


class BetweenProjections(CompositeComponent[EmptyConfig]):
    """Experts whose input others read too, and whose output goes on."""

    config_class = EmptyConfig

    def compose(self, graph: Graph, *inputs: Reference) -> Reference:
        h = graph.add(linear("first"), *inputs)
        config = MixtureOfExpertsConfig(embedding_dim=WIDTH, hidden_dim=3, num_experts=3)
        mixed = graph.add(MixtureOfExperts("experts", config), h)
        return graph.add(linear("last"), graph.add(Add("sum"), h, mixed))


EXPERT_CASES: list[Case] = [
    *family(MixtureOfExperts, EXPERTS, CHOICES, widths(6, *SEQUENCES)),
    *family(MixtureOfExperts, EXPERTS, KINDS, widths(6, (2, 3)), suffix="kinds"),
    *family(MixtureOfExperts, EXPERTS, [{}], [(2, 5, 6)], suffix="prefill", options={INFERENCE: {"prefill_size": 5}}),
    *family(MixtureOfExperts, SINGLE, [{}, {"trainable": False}], widths(3, (2, 5), (1, 1))),
    *family(MixtureOfExperts, {**EXPERTS, "num_experts": 11}, [{"top_k": 3}], [(1, 2, 6)], suffix="most unused"),
    structure(BetweenProjections, {"input": (2, 5, WIDTH)}),
]

LARGE_EXPERT_CASES: list[Case] = family(
    MixtureOfExperts,
    {"embedding_dim": 256, "hidden_dim": 512, "num_experts": 4},
    [{}, {"top_k": 1}, {"top_k": 4}, {"trainable": False}],
    [(8, 128, 256)],
)

EXPERT_REFUSALS: list[Refused] = [
    config_refusal(MixtureOfExperts, {**EXPERTS, "top_k": 5}, "top_k 5 must be at most num_experts 4"),
    config_refusal(MixtureOfExperts, {**EXPERTS, "top_k": 0}, "top_k"),
    config_refusal(MixtureOfExperts, {**EXPERTS, "num_experts": 0}, "num_experts"),
    config_refusal(MixtureOfExperts, {**EXPERTS, "activation": "swish"}, "activation"),
    build_refusal(MixtureOfExperts, EXPERTS, (2, 5, 7), ShapeError, "of 6"),
    build_refusal(MixtureOfExperts, EXPERTS, (2, 6), ShapeError, "B, T, C"),
]
