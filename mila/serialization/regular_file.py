"""Opening a file for reading, where the path may lead to anything."""

from __future__ import annotations

import stat
from io import FileIO
from pathlib import Path

from mila.serialization.failures import operating_system_refusal, refusal, shown


def open_regular_file(path: Path) -> FileIO:
    """Open a file for reading; links are followed.

    Raises:
        CheckpointError: no such file, one that may not be read, a folder, a pipe or a device, or a name that no system
            takes.
    """
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
        # Opening a pipe would wait for its other end.
        file = FileIO(path) if is_file else None
    except OSError as error:
        raise operating_system_refusal(path, "could not be opened", error) from error
    except ValueError as error:
        raise refusal(shown(str(path)), expected="a path that the system can open", got=str(error)) from error
    if file is None:
        raise refusal(path, expected="a file", got="a folder or a device")
    return file
