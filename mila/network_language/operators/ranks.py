"""Relations about ranks and widths that several operators have."""

from __future__ import annotations

from mila.network_language.relations import NodeView


def two_or_three_axes(view: NodeView) -> None:
    """Refuse tensors of four axes."""
    for port in (*view.inputs, *view.outputs):
        rank = view.rank(port)
        if rank is not None and rank > 3:
            view.refuse(f"it takes [B, D] or [B, T, D], but {port} ({view.refs[port]}) has {rank} axes")


def divisible_by_heads(view: NodeView) -> None:
    """Refuse a width that the heads do not divide."""
    heads, known = view.argument("heads"), view.known("x", 2)
    if known is not None and int(known.value) % heads:
        view.refuse(f"heads={heads} does not divide the width D of x, which is {known}")


def inside_the_rank(view: NodeView, name: str, rank: int | None) -> None:
    """Refuse an axis, given as an argument, that a tensor of this rank does not have."""
    axis = view.argument(name)
    if rank is not None and axis >= rank:
        view.refuse(f"{name}={axis}, but x has {rank} axes, the batch among them", "E_ARGUMENT")
