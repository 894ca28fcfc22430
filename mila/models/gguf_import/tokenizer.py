"""The tokenizer of a GGUF file, as the files of a Hugging Face folder.

Two kinds are understood: byte-level BPE with its merges (``gpt2``), and SentencePiece BPE, whose merges follow from the
scores of its pieces (``llama``). Texts are encoded as llama.cpp encodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from mila.models.gguf_import.source import GgufSource
from mila.models.gguf_import.splitting import SPLITTING_RULES, SplittingRule
from mila.serialization.failures import refusal, shown

_SPACE = "\u2581"
_PREFIX = "tokenizer.ggml"
_ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
_MORE_ENDS = ("eot_token_id", "eom_token_id")


class _Kind(IntEnum):
    """The kinds of tokens in ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What becomes of the tokenizer.

    Attributes:
        tokenizer: the text of ``tokenizer.json``.
        tokenizer_config: the content of ``tokenizer_config.json``.
        generation_config: the content of ``generation_config.json``.
        token_ids: ``bos_token_id`` and the like, for ``config.json``.
        notes: what a user should be told.
    """

    tokenizer: str
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]
    token_ids: dict[str, int | None]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    kinds: list[int]
    ids: dict[str, int]

    def of_kind(self, *kinds: _Kind) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]


def convert_tokenizer(source: GgufSource, vocab_size: int, context_length: int) -> TokenizerFiles:
    """Return the tokenizer of a file.

    Args:
        source: the file.
        vocab_size: the rows of its token table, which it must have a token for each.
        context_length: what ``tokenizer_config.json`` gives as the longest text, in tokens.

    Raises:
        CheckpointError: an unknown kind of tokenizer or splitting rule, a missing key, or a vocabulary that
            contradicts itself.
    """
    vocabulary = _read_vocabulary(source, vocab_size)
    ids = {role: _token_id(source, key, vocab_size) for role, key in _ROLES.items()}
    model = source.text(f"{_PREFIX}.model")
    notes: tuple[str, ...] = ()
    if model == "gpt2":
        rule = _splitting_rule(source)
        tokenizer = _byte_level(source, vocabulary, rule)
        adds_bos = _flag(source, "add_bos_token", rule.adds_bos)
        if source.text(f"{_PREFIX}.pre") == "default":
            notes = ("the file names no splitting rule of its own (pre: default): texts are split as llama.cpp does",)
    elif model == "llama":
        if ids["unk"] is None:
            raise refusal(source.path, expected=f"metadata {_PREFIX}.{_ROLES['unk']}", got="none")
        tokenizer = _sentencepiece(source, vocabulary, vocabulary.tokens[ids["unk"]])
        adds_bos = _flag(source, "add_bos_token", True)
    else:
        raise source.refuse(f"{_PREFIX}.model", "gpt2 or llama", shown(model))
    adds_eos = _flag(source, "add_eos_token", False)
    _add_tokens(source, tokenizer, vocabulary)
    _add_template(source, tokenizer, vocabulary, ids["bos"] if adds_bos else None, ids["eos"] if adds_eos else None)
    _check_flags(source, ids, adds_bos, adds_eos)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    config |= {f"{role}_token": vocabulary.tokens[number] for role, number in ids.items() if number is not None}
    if source.has("tokenizer.chat_template"):
        config["chat_template"] = source.text("tokenizer.chat_template")
    token_ids = {f"{role}_token_id": ids[role] for role in ("bos", "eos", "pad")}
    return TokenizerFiles(
        tokenizer.to_str(), config, _generation_config(source, token_ids, vocab_size), token_ids, notes
    )


def _read_vocabulary(source: GgufSource, vocab_size: int) -> _Vocabulary:
    key = f"{_PREFIX}.tokens"
    tokens = source.texts(key)
    if len(tokens) != vocab_size:
        raise source.refuse(key, f"{vocab_size} tokens, one for each row of the token table", str(len(tokens)))
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        number = next(number for number, token in enumerate(tokens) if ids[token] != number)
        raise source.refuse(key, "tokens that differ", f"{shown(tokens[number])} as {number} and {ids[tokens[number]]}")
    kinds = source.numbers(f"{_PREFIX}.token_type", vocab_size).tolist()
    known = set(_Kind)
    unknown = next((kind for kind in kinds if kind not in known), None)
    if unknown is not None:
        raise source.refuse(f"{_PREFIX}.token_type", "kinds of tokens from 1 to 6", str(unknown))
    return _Vocabulary(tokens, kinds, ids)


def _token_id(source: GgufSource, key: str, vocab_size: int) -> int | None:
    path = f"{_PREFIX}.{key}"
    return source.integer(path, maximum=vocab_size - 1) if source.has(path) else None


def _flag(source: GgufSource, name: str, default: bool) -> bool:
    key = f"{_PREFIX}.{name}"
    return source.flag(key) if source.has(key) else default


def _check_flags(source: GgufSource, ids: dict[str, int | None], adds_bos: bool, adds_eos: bool) -> None:
    for added, role in ((adds_bos, "bos"), (adds_eos, "eos")):
        if added and ids[role] is None:
            expected = f"metadata {_PREFIX}.{_ROLES[role]}, for texts that get this token"
            raise refusal(source.path, expected=expected, got="none")


def _splitting_rule(source: GgufSource) -> SplittingRule:
    key = f"{_PREFIX}.pre"
    if not source.has(key):
        hint = "a newer converter writes it"
        raise refusal(
            source.path, expected=f"metadata {key}, the name of the rule that splits text", got="none", hint=hint
        )
    name = source.text(key)
    if name not in SPLITTING_RULES:
        raise source.refuse(key, " or ".join(SPLITTING_RULES), shown(name), "any other rule would give wrong ids")
    if _flag(source, "add_space_prefix", False):
        raise source.refuse(f"{_PREFIX}.add_space_prefix", "false for a byte-level vocabulary", "true")
    return SPLITTING_RULES[name]


def _byte_level(source: GgufSource, vocabulary: _Vocabulary, rule: SplittingRule) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = list(_stored_merges(source, vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=rule.ignores_merges))
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in rule.expressions]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _stored_merges(source: GgufSource, vocabulary: _Vocabulary) -> Iterator[tuple[str, str]]:
    key = f"{_PREFIX}.merges"
    for number, merge in enumerate(source.texts(key)):
        left, space, right = merge.partition(" ")
        if not space or not {left, right, left + right} <= vocabulary.ids.keys():
            expected = "two tokens that make a third, with a space between them"
            raise source.refuse(key, expected, f"{shown(merge)} as merge {number}")
        yield left, right


def _sentencepiece(source: GgufSource, vocabulary: _Vocabulary, unknown: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    charsmap = f"{_PREFIX}.precompiled_charsmap"
    if source.has(charsmap):
        raise source.refuse(charsmap, "no map of characters", "one, which is not understood")
    if _flag(source, "remove_extra_whitespaces", False):
        raise source.refuse(f"{_PREFIX}.remove_extra_whitespaces", "false", "true")
    bytes_held = set(vocabulary.of_kind(_Kind.BYTE))
    if bytes_held != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise source.refuse(f"{_PREFIX}.tokens", "the 256 tokens of bytes", f"{len(bytes_held)} of that kind")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_by_score(source, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = _flag(source, "add_space_prefix", True)
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if adds_space else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    return tokenizer


def _merges_by_score(source: GgufSource, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece vocabulary: every way to make a piece of two, the best score first.

    SentencePiece merges whichever two neighbours make the piece of the best score (Kudo & Richardson 2018).
    """
    scores = source.numbers(f"{_PREFIX}.scores", len(vocabulary.tokens)).astype(np.float64)
    if not np.all(np.isfinite(scores)):
        raise source.refuse(f"{_PREFIX}.scores", "finite numbers", "others")
    pieces = set(vocabulary.of_kind(_Kind.NORMAL))
    merges: list[tuple[str, str]] = []
    for number in np.argsort(-scores, kind="stable").tolist():
        piece = vocabulary.tokens[number]
        if piece in pieces:
            splits = ((piece[:place], piece[place:]) for place in range(1, len(piece)))
            merges += [(left, right) for left, right in splits if left in pieces and right in pieces]
    return merges


def _add_tokens(source: GgufSource, tokenizer: Any, vocabulary: _Vocabulary) -> None:
    """Have control tokens, and those that users defined, found in a text before it is split."""
    from tokenizers import AddedToken

    special = vocabulary.of_kind(_Kind.CONTROL, _Kind.UNKNOWN)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    defined = vocabulary.of_kind(_Kind.USER_DEFINED)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in defined])
    if tokenizer.get_vocab_size() != len(vocabulary.tokens):
        got = f"{tokenizer.get_vocab_size()} after the special ones were added"
        raise source.refuse(f"{_PREFIX}.tokens", f"{len(vocabulary.tokens)} tokens", got)


def _add_template(
    source: GgufSource, tokenizer: Any, vocabulary: _Vocabulary, first: int | None, last: int | None
) -> None:
    """Have every text start and end with a token, or with none."""
    from tokenizers import processors

    added = {number: vocabulary.tokens[number] for number in (first, last) if number is not None}
    if not added:
        return
    before = [] if first is None else [added[first]]
    after = [] if last is None else [added[last]]
    pair = [*before, "$A:0", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{token}:1" for token in after)]
    try:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A:0", *after],
            pair=pair,
            special_tokens=[(text, number) for number, text in added.items()],
        )
    except ValueError as error:
        names = shown(list(added.values()))
        raise refusal(source.path, expected="tokens that can start and end a text", got=f"{names}: {error}") from None


def _generation_config(source: GgufSource, token_ids: dict[str, int | None], vocab_size: int) -> dict[str, Any]:
    """The ids of special tokens; a text ends at its end token, and at the ends of a turn or a message."""
    ends = [token_ids["eos_token_id"], *(_token_id(source, key, vocab_size) for key in _MORE_ENDS)]
    distinct = list(dict.fromkeys(end for end in ends if end is not None))
    config: dict[str, Any] = {key: number for key, number in token_ids.items() if number is not None}
    if distinct:
        config["eos_token_id"] = distinct[0] if len(distinct) == 1 else distinct
    return config
