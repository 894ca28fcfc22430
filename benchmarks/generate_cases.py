"""What ``benchmarks.generate`` measures: two real shapes with random weights, written as model folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 2
CONTEXT = 1024
PREFILL_TOKENS = 512
PROMPT_TOKENS = 32
SEED = 0


@dataclass(frozen=True)
class GenerationCase:
    """A model: its config in transformers' names, by the name of its model class."""

    name: str
    title: str
    model_class: str
    config_class: str
    fields: dict[str, Any]

    @property
    def vocabulary(self) -> int:
        """Rows of the table."""
        size: int = self.fields["vocab_size"]
        return size

    def draw_tokens(self, count: int) -> list[int]:
        """A prompt."""
        drawn: list[int] = np.random.default_rng(SEED).integers(0, self.vocabulary, count).tolist()
        return drawn

    def write(self, folder: Path) -> None:
        """Save random float32 weights and a byte-level tokenizer as a model folder, by transformers."""
        import torch
        import transformers

        torch.manual_seed(SEED)
        config = getattr(transformers, self.config_class)(**self.fields)
        getattr(transformers, self.model_class)(config).save_pretrained(folder)
        write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: every byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


#: No token ends a generation: both sides emit as many as they are asked for.
ENDLESS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

CASES = {
    case.name: case
    for case in (
        GenerationCase(
            "smollm2",
            "SmolLM2-135M",
            "LlamaForCausalLM",
            "LlamaConfig",
            {
                "vocab_size": 49152,
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "max_position_embeddings": 8192,
                "rope_theta": 100000.0,
                "tie_word_embeddings": True,
                **ENDLESS,
            },
        ),
        GenerationCase(
            "gpt2", "GPT-2 124M", "GPT2LMHeadModel", "GPT2Config", {"vocab_size": 50257, "n_positions": 1024, **ENDLESS}
        ),
    )
}
