"""Tokenizers trained on a few words, networks that write nonsense, and the folders that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mila import BuildContext, RuntimeMode
from mila.generation.text import TextTokenizer
from mila.models import LlamaConfig, LlamaTransformer

TEXTS = [
    "the quick brown fox jumps over the lazy dog. it's 1,234 o'clock!",
    "héllo wörld, naïve café",
    "日本語の文",
] * 20
START, END = "<|im_start|>", "<|im_end|>"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([START, END])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As Llama 2, TinyLlama and Mistral have it: spaces are letters, and unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    specials = ["<unk>", "<s>", "</s>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens([AddedToken("[INST]", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


TOKENIZERS = {"byte_level": byte_level, "sentencepiece": sentencepiece}
END_OF = {"byte_level": END, "sentencepiece": "</s>"}


def write_folder(folder: Path, kind: str = "byte_level", **files: Any) -> Path:
    """A folder with a tokenizer; each of ``files`` is the content of the file of that name, a template or JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    TOKENIZERS[kind]().save(str(folder / "tokenizer.json"))
    files.setdefault("tokenizer_config", {"eos_token": END_OF[kind]})
    for name, content in files.items():
        if name == "chat_template":
            (folder / "chat_template.jinja").write_text(content, "utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder


def read_folder(folder: Path, kind: str = "byte_level", **files: Any) -> TextTokenizer:
    return TextTokenizer.from_folder(write_folder(folder, kind, **files))


def unbuilt(vocab_size: int = 400, positions: int = 96, seed: int = 0) -> LlamaTransformer:
    config = LlamaConfig(
        vocab_size=vocab_size,
        embedding_dim=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        hidden_dim=24,
        max_seq_len=positions,
    )
    return LlamaTransformer("llama", config, device="cpu", seed=seed)


def network(vocab_size: int = 400, positions: int = 96, rows: int = 1, seed: int = 0) -> LlamaTransformer:
    """Built for inference, with random weights; the table is larger than the vocabulary."""
    model = unbuilt(vocab_size, positions, seed)
    model.build(BuildContext((rows, positions), RuntimeMode.INFERENCE, initialize_parameters=True, prefill_size=16))
    generator = np.random.default_rng(seed)
    for parameter in model.get_parameters():
        parameter[...] = generator.normal(0, 0.6, parameter.shape)  # so that it does not say the same again and again
    return model


def write_model(folder: Path, kind: str = "byte_level", *, positions: int = 96, **files: Any) -> Path:
    """A model folder: what :func:`network` is, and what :func:`write_folder` adds."""
    network(positions=positions).save_pretrained(folder)
    return write_folder(folder, kind, **files)
