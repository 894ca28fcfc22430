"""An exported folder whose every file holds one value, and what a reader finds under its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mila.serialization import ExportFolder, open_tensors, read_json_object, recover_folder

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
FILES = ["config.json", "mila_export.json", *SHARDS, INDEX]


def save_export(path: Path, value: float, elements: int = 100) -> None:
    """Export two shards and a config."""
    array = np.full(elements, value, np.float32)
    with ExportFolder(path) as folder:
        folder.write_json("config.json", {"value": value})
        with folder.tensors(array.nbytes) as writer:
            for name in "ab":
                writer.declare(name, np.float32, array.shape)
            writer.begin()
            for name in "ab":
                writer.write(name, array)


def load_export(path: Path) -> float | None:
    """Return the one value of a folder's files, None where there is no folder."""
    recover_folder(path)
    if not path.exists():
        return None
    values = {float(read_json_object(path / "config.json")["value"])}
    with open_tensors(path) as source:
        assert set(source.tensors) == {"a", "b"}
        for name in "ab":
            values.update(np.unique(source.read(name)).tolist())
    assert len(values) == 1
    assert sorted(each.name for each in path.iterdir()) == FILES
    return values.pop()
