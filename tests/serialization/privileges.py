"""A place where the permissions of files count, also for tests that the administrator runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_ordinary_user() -> Iterator[Path]:
    """Give a new folder that everybody may enter, and let an administrator be nobody for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp())
    is_administrator = os.geteuid() == 0
    try:
        if is_administrator:
            os.chown(folder, NOBODY, NOBODY)
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        yield folder
    finally:
        if is_administrator:
            os.seteuid(0)
            os.setegid(0)
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)
