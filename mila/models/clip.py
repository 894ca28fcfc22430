"""The text encoder of CLIP (Radford et al. 2021): texts become vectors that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mila.core import BuildContext, Position
from mila.core.checking import check_array, check_extents
from mila.core.lifecycle import execution_of
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError
from mila.kernels.signatures import Array
from mila.memory.declarations import Category, Declaration, Lifetime
from mila.memory.storage import DType, network_dtype
from mila.models.clip_definition import IDS, MARKS, ClipTextConfig, clip_text_contracts, clip_text_definition
from mila.models.pretrained import Pretrained
from mila.network_language import DefinedNetwork, resolve
from mila.network_language.contracts import NETWORK_DTYPES

_INT64 = np.dtype(np.int64)


class ClipTextOutput(NamedTuple):
    """What a text encoder computes: views of its buffers, valid until the next ``forward``.

    Attributes:
        last_hidden_states: (B, T, D), after the last norm.
        pooled: (B, D), at the end of each text.
        embeds: (B, P), the projection of ``pooled``; ``None`` without a projection.
    """

    last_hidden_states: Array
    pooled: Array
    embeds: Array | None


class ClipTextEncoder(DefinedNetwork):
    """Ids (B, T), int32 or int64, to hidden states, pooled and projected embeddings; written in the network language.

    Attention is causal: what stands behind the end of a text changes nothing before it, so that short texts are padded
    on the right, with any id (under the rule of the largest id: with one that is not larger than the text's).

    Args:
        name: of the network.
        config: what it is.
        length: tokens T of the texts; the config's ``max_seq_len`` by default. The batch may be smaller than built, the
            length may not.
        device: such as ``"cpu"``, or an execution context; without one it can be planned, not built.
        dtype: stored dtype, float32 by default.
        seed: of initial values.

    Attributes:
        text_config: what it is.
        length: tokens T of the texts.
        pretrained: the model folder that its weights came from.

    Raises:
        ConfigurationError: a length that the position table does not have.
    """

    pretrained: Pretrained | None = None

    def __init__(
        self,
        name: str,
        config: ClipTextConfig,
        *,
        length: int | None = None,
        device: str | DeviceId | ExecutionContext | None = None,
        dtype: DType | type[Any] | str | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(config, ClipTextConfig):
            raise ConfigurationError(f"{name}: expected a ClipTextConfig, got {type(config).__name__}")
        self.text_config = config
        self.length = _checked_length(name, config, length)
        stored = "float32" if dtype is None else network_dtype(dtype).name
        input_shape, output_shape = clip_text_contracts(config, self.length)
        resolved = resolve(
            clip_text_definition(config),
            input_shape=input_shape,
            output_shape=output_shape,
            dtype=stored if stored in NETWORK_DTYPES else "float32",
            input_dtype="int64",
        )
        super().__init__(name, resolved=resolved, device=device, dtype=stored, seed=seed)

    def root_buffers(self, context: BuildContext, output_dtypes: Sequence[DType]) -> Iterator[Declaration]:
        """Where the tokens that end a text are marked."""
        yield from super().root_buffers(context, output_dtypes)
        if self.text_config.end_of_text_id is not None:
            shape = context.input_shapes[MARKS]
            yield Declaration(MARKS, shape, _INT64, Category.STATE, Lifetime.NETWORK)

    def forward(self, *inputs: Array, position: Position | None = None) -> ClipTextOutput:
        """Encode texts.

        Args:
            inputs: ids (B, T), int32 or int64, of the built batch or a smaller one.
            position: as for any network; texts start at 0 by default.

        Raises:
            ShapeError: another length, a larger batch, or not one input.
            TokenIdError: an id outside the vocabulary.
            LifecycleError: not built, or parameters are missing.
        """
        hidden, pooled, *rest = super().forward(*self._with_marks("forward", inputs), position=position)
        return ClipTextOutput(hidden, pooled, rest[0] if rest else None)

    def backward(self, *arguments: Array) -> Array:
        """Gradients of the parameters, from the ids of the last ``forward`` and the gradient of each of its outputs.

        Returns zeros (B, T): ids have no gradient.
        """
        gradients = super().backward(*self._with_marks("backward", arguments[:1]), *arguments[1:])
        ids: Array = gradients[0] if isinstance(gradients, tuple) else gradients
        return ids

    def save_pretrained(
        self,
        folder: Path | str,
        *,
        max_shard_size: str | int = "5GB",
        dtype: DType | type[Any] | str | None = None,
    ) -> None:
        """Write a model folder that ``transformers`` opens; see :func:`mila.models.export_pretrained`."""
        from mila.models.hugging_face.exporting import export_pretrained  # it knows this class

        export_pretrained(self, folder, max_shard_size=max_shard_size, dtype=dtype)

    def _with_marks(self, call: str, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """The inputs of the definition: the ids, and the marks where it pools by them."""
        end = self.text_config.end_of_text_id
        if end is None or len(inputs) != 1:
            return inputs
        execution = execution_of(self, call)
        what, built = f"{self.path}: input {IDS!r}", execution.context.input_shapes[IDS]
        ids = check_array(what, inputs[0], (np.dtype(np.int32), _INT64))
        check_extents(what, ids.shape, built, has_sequence=False)
        marks = self.view(MARKS, ids.shape)
        with execution.running():  # in another thread: it reads the marks
            np.equal(ids, end, out=marks)
        return ids, marks


def _checked_length(name: str, config: ClipTextConfig, length: int | None) -> int:
    if length is None:
        return config.max_seq_len
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= config.max_seq_len:
        raise ConfigurationError(f"{name}: expected a length from 1 to {config.max_seq_len} tokens, got {length!r}")
    return length
