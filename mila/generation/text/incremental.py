"""Text out of tokens, one at a time: never half a character, and nothing that a later token would change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: What decoders write for bytes that are not, or not yet, a character.
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class IncrementalDecoder:
    """Gives the text of a growing sequence in pieces that, joined, are the text of the whole.

    A piece waits while the text ends in an unfinished character. It also waits after a token that stands for one byte
    (``<0xE2>`` in SentencePiece vocabularies): such a decoder turns a whole run of bytes into U+FFFD where the run is
    no valid UTF-8, so nothing of the run is certain before it ends.

    Only the tokens since the piece before the last are decoded again. The piece before is there because decoders treat
    the first token specially: most drop its leading space.

    Args:
        decode: ids to text; special tokens left out.
        is_skipped: whether ``decode`` leaves a token out.
        is_byte: whether a token stands for one byte.
        context: tokens before the first; their text is not given again.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        is_skipped: Callable[[int], bool],
        is_byte: Callable[[int], bool],
        context: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._is_skipped = is_skipped
        self._is_byte = is_byte
        self._window = [token for token in context if not is_skipped(token)]
        self._known = len(self._window)  # tokens of the window whose text was given
        self._given = decode(self._window).rstrip(_UNFINISHED)  # the text of those, as it starts the window's text

    def push(self, token: int) -> str:
        """Take the next token; return the text that is certain now, which may be none."""
        if self._is_skipped(token):
            return ""
        self._window.append(token)
        if self._is_byte(token):
            return ""
        text = self._decode(self._window)
        if text.endswith(_UNFINISHED) or not text.startswith(self._given) or len(text) == len(self._given):
            return ""
        piece = text[len(self._given) :]
        self._window = self._window[self._known :]
        self._known = len(self._window)
        self._given = self._decode(self._window)
        return piece

    def finish(self) -> str:
        """The rest: no token follows, and what is unfinished stays U+FFFD."""
        text = self._decode(self._window)
        rest = text[len(self._given) :] if text.startswith(self._given) else ""
        self._known, self._given = len(self._window), text
        return rest


class StopStrings:
    """Passes text on up to the stop string that is complete first; text that may begin one waits.

    Args:
        strings: none of them empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Take more text; return what is surely before any stop string, and nothing more once one was found."""
        if self.found:
            return ""
        text = self._held + text
        ends = [(text.find(string) + len(string), text.find(string)) for string in self._strings if string in text]
        if ends:  # the first to be complete, however the text was cut into pieces
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        keep = len(text) - self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What waited, now that no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(string) for string in self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(string.startswith(end) for string in self._strings):
                return length
        return 0
