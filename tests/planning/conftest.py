"""A hub of this machine for all tests that need one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.folder_cases import GOLDEN
from tests.planning.hub_server import Hub, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model of each kind: ``tests/sharded`` and ``tests/single``, copies that a test may change."""
    package: Any = pytest.importorskip("huggingface_hub")
    constants: Any = pytest.importorskip("huggingface_hub.constants")
    folders = {}
    for name, golden in (("tests/sharded", "llama_tied_llama3"), ("tests/single", "gpt2_tied")):
        folders[name] = tmp_path / name.replace("/", "-")
        shutil.copytree(GOLDEN / golden, folders[name])
    with serving(Hub(folders)) as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 5)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        yield server
        package.close_session()
