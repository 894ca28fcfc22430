"""The weights of a model folder, opened."""

from __future__ import annotations

from pathlib import Path

from mila.errors import CheckpointError
from mila.serialization import ShardedTensors, TensorSource, open_tensors
from mila.serialization.sharded import NUMBERED_SHARD


def open_weights(folder: Path) -> TensorSource:
    """The safetensors of a model folder; shards that its index does not list are refused, and never read."""
    source = open_tensors(folder)
    try:
        listed = source.shard_names if isinstance(source, ShardedTensors) else ()
        names = sorted(file.name for file in folder.glob("model-*-of-*.safetensors"))
        stray = [name for name in names if name not in listed and NUMBERED_SHARD.fullmatch(name)]
        if stray:
            raise CheckpointError(
                f"{folder}: expected no shards but those of {source.path.name}, got {', '.join(stray)}; remove what "
                "does not belong to the model"
            )
    except BaseException:
        source.close()
        raise
    return source


def require_layers(source: TensorSource, layers: int) -> None:
    """Raise :class:`CheckpointError` where a file has not even one tensor per layer of what a config says."""
    if layers > len(source.tensors):
        got = f"{len(source.tensors)} tensors"
        raise CheckpointError(f"{source.path}: expected the weights of {layers} layers, got {got}")
