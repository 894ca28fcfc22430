"""What somebody may have meant by a name of nothing."""

from __future__ import annotations

import difflib
import os
import re

from mila.planning.presets import preset_names

_FILE_ENDINGS = (".json", ".safetensors", ".gguf", ".bin", ".pt", ".pth")
_REPOSITORY = re.compile(r"(?:https?://[^/]+/)?(\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?)/?")


def is_path(name: str) -> bool:
    """Whether a name can only be that of a file or a folder, or of a model of the hub."""
    return "/" in name or os.sep in name or name.lower().endswith(_FILE_ENDINGS)


def model_of_hub(name: str) -> str | None:
    """``owner/name[@revision]``, where a name or an address looks like one of the hub, and not like one of a file."""
    found = _REPOSITORY.fullmatch(name)
    return None if found is None or name.lower().endswith(_FILE_ENDINGS) else found[1]


def near_presets(name: str) -> str:
    """The presets whose names are most like this one, as words; empty where none is."""
    return " or ".join(difflib.get_close_matches(name.lower(), preset_names(), n=3, cutoff=0.5))
