"""Scratch of the steps of a network that is stored in a narrower dtype than it is computed in."""

from __future__ import annotations

from dataclasses import replace

from mila.core.context import Overwrite
from mila.core.draft import Draft
from mila.core.planned_build import Storage
from mila.core.schedule import Schedule, Step
from mila.core.widening import WideBuffers, stored_name, wide_name, widened_gradients, widened_parameters
from mila.memory.declarations import Category, Declaration, Lifetime, Over
from mila.memory.plan import TRANSIENT
from mila.memory.storage import Shape


class WidePlanner:
    """Plans what :class:`mila.core.widening.WideStep` needs, next to what the leaves declare.

    The buffers that a leaf declares for its outputs and gradients become scratch of its step, in the dtype that the
    leaf computes in; for what is stored there are buffers of the network's own dtype besides.

    Args:
        draft: where everything is planned.
        schedule: the steps.
        is_training: whether there are backward steps.
    """

    def __init__(self, draft: Draft, schedule: Schedule, is_training: bool) -> None:
        self._draft = draft
        self._schedule = schedule
        self._is_training = is_training
        self.buffers: dict[int, WideBuffers] = {}

    @staticmethod
    def allowed(step: Step) -> tuple[tuple[Overwrite, ...], tuple[bool, ...]]:
        """What a leaf may write over: scratch is its own, but what backward reads is widened again for it."""
        leaf, context = step.leaf, step.context
        inputs = tuple(
            Overwrite.BACKWARD if context.is_training and port.name in leaf.reads else Overwrite.FORWARD
            for port in leaf.ports
        )
        return inputs, (True,) * len(step.outputs)

    def begin(self, i: int, step: Step) -> None:
        """Scratch for inputs and parameters, and for gradients of parameters."""
        wide, leaf = self.buffers.setdefault(i, WideBuffers()), step.leaf
        for port, value in zip(leaf.ports, step.inputs, strict=True):
            if self._schedule.is_ids[value]:
                wide.inputs.append(None)
                continue
            storage = self._scratch(i, step, port.name, self._schedule.shapes[value], Category.STATE)
            wide.inputs.append(storage)
            if self._is_training and port.name in leaf.reads:
                storage.live_again(self._backward_of(i))
        stored = self._schedule.options.dtype
        shapes = {declaration.name: declaration.shape for declaration in leaf.declared_parameters()}
        for name in widened_parameters(leaf, stored):
            storage = self._scratch(i, step, name, shapes[name], Category.STATE)
            if self._is_training:
                storage.live_again(self._backward_of(i))
        for name in widened_gradients(leaf, stored) if self._is_training else ():
            self._scratch(self._backward_of(i), step, f"{name}.gradient", shapes[name], Category.GRADIENT)

    def output(self, i: int, step: Step, declaration: Declaration) -> Storage:
        """Scratch for an output; returns where the output is stored."""
        wide = self.buffers[i]
        value = step.outputs[declaration.port]
        over = wide.inputs[declaration.over_port]
        if declaration.over is None or over is None:
            scratch = self._draft.add(
                step.leaf, replace(declaration, lifetime=Lifetime.FORWARD, over=None), TRANSIENT, [(i, i)]
            )
        else:
            scratch = over
            self._draft.bind(step.leaf, declaration.name, scratch)
        if self._is_training and step.leaf.output_names[declaration.port] in step.leaf.reads:
            scratch.live_again(self._backward_of(i))
        wide.outputs[declaration.port] = scratch
        wide.made[declaration.port] = self._stored(step, declaration, value, (i, i))
        return wide.made[declaration.port]

    def upstream(self, i: int, step: Step) -> None:
        """Scratch for the gradients of the outputs."""
        back = self._backward_of(i)
        for name, value in zip(step.leaf.output_names, step.outputs, strict=True):
            storage = self._scratch(back, step, f"{name}.upstream", self._schedule.shapes[value], Category.GRADIENT)
            self.buffers[i].upstream.append(storage)

    def gradient(self, i: int, step: Step, declaration: Declaration, until: int | None) -> Storage | None:
        """Scratch for the gradient of an input.

        Returns where the gradient is stored ``until`` a step; ``None`` where it is added to what others have stored.
        """
        wide, back = self.buffers[i], self._backward_of(i)
        if declaration.over is None:
            scratch = replace(declaration, lifetime=Lifetime.BACKWARD)
            self._draft.add(step.leaf, scratch, TRANSIENT, [(back, back)])
        else:
            is_upstream = declaration.over is Over.GRADIENT
            over = wide.upstream[declaration.over_port] if is_upstream else wide.inputs[declaration.over_port]
            if over is not None:
                over.live_again(back)
                self._draft.bind(step.leaf, declaration.name, over)
        if until is None:
            return None
        value = step.inputs[declaration.port]
        wide.gradients[value] = self._stored(step, declaration, value, (back, until))
        return wide.gradients[value]

    def _backward_of(self, i: int) -> int:
        return 2 * len(self._schedule.steps) - 1 - i

    def _scratch(self, at: int, step: Step, name: str, shape: Shape, category: Category) -> Storage:
        lifetime = Lifetime.FORWARD if at < len(self._schedule.steps) else Lifetime.BACKWARD
        declaration = Declaration(wide_name(name), shape, step.context.dtype, category, lifetime)
        return self._draft.add(step.leaf, declaration, TRANSIENT, [(at, at)])

    def _stored(self, step: Step, declaration: Declaration, value: int, interval: tuple[int, int]) -> Storage:
        stored = replace(declaration, name=stored_name(declaration.name), dtype=self._schedule.dtypes[value], over=None)
        return self._draft.add(step.leaf, stored, TRANSIENT, [interval])
