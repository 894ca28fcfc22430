"""What components of two inputs of one shape have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mila.core import LeafContext, Overwrite, Port
from mila.core.component import Component, ConfigT
from mila.core.shapes import require_equal
from mila.memory.declarations import Declaration, Over, gradient, output
from mila.memory.storage import Shape


def overwritable_input(context: LeafContext, ports: Iterable[int]) -> int | None:
    """The first of ``ports`` over whose bytes the output may be written in forward, if there is one."""
    return next((port for port in ports if context.overwritable[port] is Overwrite.FORWARD), None)


class Pairwise(Component[ConfigT]):
    """``a`` and ``b`` of one shape to that shape, element by element; backward reads neither unless it says so."""

    ports = (Port("a"), Port("b"))
    is_per_position = True

    def output_shapes(self, context: LeafContext) -> tuple[Shape, ...]:
        """Both inputs' shape."""
        return (require_equal(self, *context.input_shapes),)

    def declare(self, context: LeafContext) -> Iterator[Declaration]:
        """Output over an input, the gradient of ``a`` over the output's, where the graph allows it."""
        shape = context.input_shape
        yield output(shape, context.dtype, over=overwritable_input(context, (1, 0)))
        if context.is_training:
            over = Over.GRADIENT if context.gradient_overwritable[0] else None
            yield gradient("a", shape, context.dtype, port=0, over=over)
            yield gradient("b", shape, context.dtype, port=1)
