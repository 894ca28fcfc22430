"""The text encoder of CLIP (Radford et al. 2021): texts become vectors that can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mila.core import Position
from mila.devices import DeviceId, ExecutionContext
from mila.errors import ConfigurationError
from mila.kernels.signatures import Array
from mila.memory.storage import DType, network_dtype
from mila.models.clip_definition import ClipTextConfig, clip_text_contracts, clip_text_definition
from mila.models.clip_operators import CLIP_REGISTRY
from mila.models.pretrained import Pretrained
from mila.network_language import DefinedNetwork, resolve
from mila.network_language.contracts import NETWORK_DTYPES


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
        text_config: what it is, as the constructor takes it; ``config`` is the resolved definition made from it.
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
            registry=CLIP_REGISTRY,
            most_parameter_bytes=None,  # the text is Mila's own, and a build says what does not fit
        )
        super().__init__(name, resolved=resolved, device=device, dtype=stored, seed=seed)

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
        hidden, pooled, *rest = super().forward(*inputs, position=position)
        return ClipTextOutput(hidden, pooled, rest[0] if rest else None)

    def backward(self, *arguments: Array) -> Array:
        """Gradients of the parameters.

        Args:
            arguments: the ids of the last ``forward``, and the gradients of its outputs, each in the dtype of that
                output: of ``last_hidden_states`` (B, T, D), of ``pooled`` (B, D) and, with a projection, of ``embeds``
                (B, P).

        Returns:
            Zeros (B, T): ids have no gradient.

        Raises:
            ShapeError: another shape than the last ``forward`` had, or a gradient too many or too few.
            DTypeError: a gradient of another dtype.
            LifecycleError: not built for training, in ``EVAL`` mode, or there was no ``forward``.
        """
        gradients: Array = super().backward(*arguments)
        return gradients

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


def _checked_length(name: str, config: ClipTextConfig, length: int | None) -> int:
    if length is None:
        return config.max_seq_len
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= config.max_seq_len:
        raise ConfigurationError(f"{name}: expected a length from 1 to {config.max_seq_len} tokens, got {length!r}")
    return length
