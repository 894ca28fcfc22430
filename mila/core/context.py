"""Build contexts: for which shapes, in which mode, a component is built."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from mila.core.modes import RuntimeMode
from mila.errors import ConfigurationError, ShapeError
from mila.kernels.signatures import Kernels
from mila.memory.storage import DType, Shape, accumulation_dtype

#: The input name under which a context keeps a shape given without one.
ANY_INPUT = "*"


class Layout(Enum):
    """How transient bytes are laid out; all layouts give bit-identical results if the declared lifetimes are true."""

    #: Buffers that are not alive together share bytes.
    SHARED = "shared"
    #: No two buffers share a byte, nothing is written over anything else, and bytes become 0xFF when their life ends:
    #: for finding wrong declarations.
    POISONED = "poisoned"


@dataclass(frozen=True, init=False)
class BuildContext:
    """What to build for.

    Args:
        shape: the largest shape of the input, or one shape per input by name. One shape also serves a component with
            several inputs whose shapes follow from it.
        runtime_mode: what the build allocates for.
        initialize_parameters: whether build draws them; by default in training only.
        prefill_size: in inference, how many positions one ``forward`` takes at most; refused in training.
        max_seq_len: positions that tables and caches hold; by default the sequence length.
        capture: paths, relative to the built component, of children whose output stays readable after ``forward``.
        all_logits: a language model's logits at every position in inference, not only at the last.
        layout: how transient bytes are laid out.

    Raises:
        ShapeError: an empty shape, or an extent that is not a positive integer.
        ConfigurationError: options that contradict each other.
    """

    input_shapes: Mapping[str, Shape]
    runtime_mode: RuntimeMode
    initialize_parameters: bool
    prefill_size: int | None
    max_seq_len: int | None
    capture: tuple[str, ...]
    all_logits: bool
    layout: Layout
    input_dtypes: Mapping[str, DType]

    def __init__(
        self,
        shape: Sequence[int] | Mapping[str, Sequence[int]],
        runtime_mode: RuntimeMode,
        *,
        initialize_parameters: bool | None = None,
        prefill_size: int | None = None,
        max_seq_len: int | None = None,
        capture: Sequence[str] = (),
        all_logits: bool = False,
        layout: Layout = Layout.SHARED,
    ) -> None:
        if not isinstance(runtime_mode, RuntimeMode):
            raise ConfigurationError(f"build context: runtime_mode must be a RuntimeMode, got {runtime_mode!r}")
        shapes = shape if isinstance(shape, Mapping) else {ANY_INPUT: shape}
        if not shapes:
            raise ShapeError("build context: expected at least one input shape, got none")
        is_list = isinstance(capture, Sequence) and not isinstance(capture, str | bytes)
        if not is_list or not all(isinstance(path, str) for path in capture):
            raise ConfigurationError(f"build context: capture must be a list of paths, got {capture!r}")
        if not isinstance(all_logits, bool):
            raise ConfigurationError(f"build context: all_logits must be True or False, got {all_logits!r}")
        if not isinstance(layout, Layout):
            raise ConfigurationError(f"build context: layout must be a Layout, got {layout!r}")
        if initialize_parameters is not None and not isinstance(initialize_parameters, bool):
            raise ConfigurationError(
                f"build context: initialize_parameters must be True, False or None, got {initialize_parameters!r}"
            )
        training = runtime_mode is RuntimeMode.TRAINING
        if prefill_size is not None and training:
            raise ConfigurationError("build context: prefill_size is for inference, got it with RuntimeMode.TRAINING")
        for name, value in (("prefill_size", prefill_size), ("max_seq_len", max_seq_len)):
            if value is not None:
                require_positive("build context", name, value)
        _set(
            self,
            input_shapes=MappingProxyType({name: _checked_shape(name, extents) for name, extents in shapes.items()}),
            runtime_mode=runtime_mode,
            initialize_parameters=training if initialize_parameters is None else initialize_parameters,
            prefill_size=prefill_size,
            max_seq_len=max_seq_len,
            capture=tuple(capture),
            all_logits=all_logits,
            layout=layout,
            input_dtypes=MappingProxyType({}),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("input_shapes", "input_dtypes"):  # read-only views are not copied
            fields[name] = dict(fields[name])
        return _restore, (fields,)

    @property
    def input_shape(self) -> Shape:
        """The shape of the only input; a :class:`ShapeError` where there are several."""
        if len(self.input_shapes) != 1:
            raise ShapeError(f"build context: expected one input, got {', '.join(self.input_shapes)}")
        return next(iter(self.input_shapes.values()))

    @property
    def is_training(self) -> bool:
        """Whether gradients are allocated."""
        return self.runtime_mode is RuntimeMode.TRAINING

    @property
    def is_inference(self) -> bool:
        """Whether only what forward needs is allocated."""
        return self.runtime_mode is RuntimeMode.INFERENCE

    def with_shapes(
        self, shapes: Mapping[str, Shape], dtypes: Mapping[str, DType], max_seq_len: int | None
    ) -> BuildContext:
        """The same context for other inputs: what a component stores, and hands to its children."""
        derived = object.__new__(BuildContext)
        _set(
            derived,
            input_shapes=MappingProxyType(dict(shapes)),
            runtime_mode=self.runtime_mode,
            initialize_parameters=self.initialize_parameters,
            prefill_size=self.prefill_size,
            max_seq_len=max_seq_len,
            capture=self.capture,
            all_logits=self.all_logits,
            layout=self.layout,
            input_dtypes=MappingProxyType(dict(dtypes)),
        )
        return derived


class Overwrite(Enum):
    """When a component may write over the bytes of one of its inputs."""

    NEVER = "never"
    #: Only in its backward step: everybody else is done with the value then.
    BACKWARD = "backward"
    #: From its forward step on.
    FORWARD = "forward"


@dataclass(frozen=True, slots=True)
class LeafContext:
    """What a leaf's declaration may depend on.

    Attributes:
        input_shapes: largest shape of each input.
        runtime_mode: what the build is for.
        dtype: of all activations that the leaf sees: the dtype that it computes in. Networks may be stored in less.
        max_seq_len: positions that tables and caches hold.
        all_logits: whether a language model's logits are wanted at every position.
        kernels: the backend, for the sizes of workspaces.
        overwritable: for each input, whether the leaf may write over it.
        gradient_overwritable: for each output, whether the leaf may write over its gradient.
    """

    input_shapes: tuple[Shape, ...]
    runtime_mode: RuntimeMode
    dtype: DType
    max_seq_len: int
    all_logits: bool
    kernels: Kernels
    overwritable: tuple[Overwrite, ...] = ()
    gradient_overwritable: tuple[bool, ...] = ()

    @property
    def input_shape(self) -> Shape:
        """Shape of the first input."""
        return self.input_shapes[0]

    @property
    def is_training(self) -> bool:
        """Whether gradients are allocated."""
        return self.runtime_mode is RuntimeMode.TRAINING

    @property
    def statistics_dtype(self) -> DType:
        """Dtype of row statistics and workspaces."""
        return accumulation_dtype(self.dtype)

    def allowing(self, overwritable: tuple[Overwrite, ...], gradient_overwritable: tuple[bool, ...]) -> LeafContext:
        """The same context with what the graph allows."""
        return LeafContext(  # `dataclasses.replace` takes several times as long, and every leaf of a plan asks
            self.input_shapes,
            self.runtime_mode,
            self.dtype,
            self.max_seq_len,
            self.all_logits,
            self.kernels,
            overwritable,
            gradient_overwritable,
        )


def _set(context: BuildContext, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(context, name, value)


def _restore(fields: dict[str, Any]) -> BuildContext:
    """A copied or unpickled context."""
    context = object.__new__(BuildContext)
    for name in ("input_shapes", "input_dtypes"):
        fields[name] = MappingProxyType(fields[name])
    _set(context, **fields)
    return context


def require_positive(where: str, name: str, value: object) -> None:
    """Raise :class:`ShapeError` for anything else than an integer of at least 1.

    Args:
        where: what the error is about.
        name: of the argument.
        value: of the argument.
    """
    if _integer(where, name, value) < 1:
        raise ShapeError(f"{where}: {name} must be at least 1, got {value}")


def _integer(where: str, name: str, value: object) -> int:
    if isinstance(value, bool):
        raise ShapeError(f"{where}: {name} must be an integer, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"{where}: {name} must be an integer, got {value!r}") from None


def _checked_shape(name: str, extents: Sequence[int]) -> Shape:
    where = "the input shape" if name == ANY_INPUT else f"the shape of {name!r}"
    if isinstance(extents, str | bytes) or not isinstance(extents, Iterable):
        raise ShapeError(f"build context: {where} must be a sequence of integers, got {extents!r}")
    shape = tuple(_integer("build context", where, extent) for extent in extents)
    if not shape or any(extent < 1 for extent in shape):
        raise ShapeError(f"build context: {where} must have at least one axis and extents of at least 1, got {shape}")
    return shape
