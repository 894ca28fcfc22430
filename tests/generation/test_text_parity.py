"""Tokenizers and chat templates beside ``transformers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mila.generation.text import TextTokenizer
from tests.generation.chat_templates import CONVERSATIONS, TEMPLATES
from tests.generation.test_text_tokenizer import HARD_TEXT
from tests.generation.text_models import END, TEXTS, TOKENIZERS, read_folder

pytestmark = pytest.mark.parity

CONFIGS: dict[str, dict[str, Any]] = {
    "byte_level": {"bos_token": "<|im_start|>", "eos_token": END, "pad_token": END},
    "sentencepiece": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": False},
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TextTokenizer, Any]:
    """Ours and that of ``transformers``, of one folder."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tokenizers")
    settings = CONFIGS[request.param] | {"tokenizer_class": "PreTrainedTokenizerFast"}
    ours = read_folder(folder, request.param, tokenizer_config=settings)
    return ours, transformers.AutoTokenizer.from_pretrained(folder)


def test_ids_and_text(pair: tuple[TextTokenizer, Any]) -> None:
    ours, theirs = pair
    for text in (*TEXTS[:3], HARD_TEXT, "", " leading"):
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
        decoder = ours.decoder()
        pieces = [decoder.push(token) for token in ids]
        assert "".join([*pieces, decoder.finish()]) == theirs.decode(ids, skip_special_tokens=True)
    assert theirs.eos_token_id in ours.stop_tokens


@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(pair: tuple[TextTokenizer, Any], name: str, conversation: str, generate: bool) -> None:
    ours, theirs = pair
    messages = CONVERSATIONS[conversation]
    folder = ours.folder
    (folder / "chat_template.jinja").write_text(TEMPLATES[name], "utf-8")
    text = TextTokenizer.from_folder(folder).render_chat(messages, add_generation_prompt=generate)
    options = {"chat_template": TEMPLATES[name], "add_generation_prompt": generate}
    assert text == theirs.apply_chat_template(messages, tokenize=False, **options)
    assert ours.encode(text, add_special_tokens=False) == theirs.apply_chat_template(messages, **options)["input_ids"]


def test_older_folders_of_gpt2(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    base = TOKENIZERS["byte_level"]()
    base.model.save(str(tmp_path))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": len(vocabulary) - 1}))
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    ours = TextTokenizer.from_folder(tmp_path)
    for text in (*TEXTS[:3], HARD_TEXT, "one<|endoftext|>two"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
