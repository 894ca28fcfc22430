"""How byte-level vocabularies split text before the merges, by the name that a GGUF file gives to the rule.

GGUF records a name (``tokenizer.ggml.pre``), not the rule. Each rule here is that of the model family's own tokenizer;
``default`` is what llama.cpp does with a file whose converter did not know the family. A wrong rule gives plausible
but wrong ids, so that a name without a rule is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS_AND_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """What happens to a text before the merges.

    Attributes:
        expressions: regular expressions applied one after the other, each to the pieces that the one before left; what
            matches is a piece, and so is what lies between two matches.
        composes: whether the text is brought into Unicode's form NFC first.
        ignores_merges: whether a piece that is a token is taken whole, whatever the merges say.
        adds_bos: whether a text starts with the beginning token where the file does not say.
    """

    expressions: tuple[str, ...]
    composes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_LLAMA3 = SplittingRule(
    (rf"{_CONTRACTIONS_AND_WORDS}|\p{{N}}{{1,3}}|{_MARKS_AND_SPACES}",), ignores_merges=True, adds_bos=True
)

SPLITTING_RULES = MappingProxyType(
    {
        "gpt-2": SplittingRule((_GPT2,)),
        "smollm": SplittingRule((r"\p{N}", _GPT2)),
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "qwen2": SplittingRule((rf"{_CONTRACTIONS_AND_WORDS}|\p{{N}}|{_MARKS_AND_SPACES}",), composes=True),
        "default": SplittingRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    }
)
"""Every rule that is known, by its name in ``tokenizer.ggml.pre``."""
