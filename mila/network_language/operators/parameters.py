"""Parameters that several operators have, named as saved networks name them."""

from __future__ import annotations

from mila.network_language.operator import Shape


def linear_parameters(name: str, inputs: int, outputs: int, bias: bool) -> dict[str, Shape]:
    """Return weight and bias of a projection; ``name`` is empty or ends with a dot."""
    weight: dict[str, Shape] = {f"{name}weight": (outputs, inputs)}
    return {**weight, f"{name}bias": (outputs,)} if bias else weight


def norm_parameters(name: str, width: int, bias: bool) -> dict[str, Shape]:
    """Return the scale of a normalization, and its shift where it has one."""
    weight: dict[str, Shape] = {f"{name}weight": (width,)}
    return {**weight, f"{name}bias": (width,)} if bias else weight


def attention_parameters(name: str, width: int, context_width: int, bias: bool) -> dict[str, Shape]:
    """Return the four projections of attention; keys and values read ``context_width``."""
    return {
        **linear_parameters(f"{name}q_proj.", width, width, bias),
        **linear_parameters(f"{name}k_proj.", context_width, width, bias),
        **linear_parameters(f"{name}v_proj.", context_width, width, bias),
        **linear_parameters(f"{name}o_proj.", width, width, bias),
    }


def feed_forward_parameters(name: str, width: int, hidden: int, bias: bool) -> dict[str, Shape]:
    """Return the two projections of a feed-forward layer."""
    return {
        **linear_parameters(f"{name}up.", width, hidden, bias),
        **linear_parameters(f"{name}down.", hidden, width, bias),
    }
