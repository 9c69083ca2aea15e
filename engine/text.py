"""Text of an answer as its tokens arrive: whole characters only, nothing twice, nothing lost.

It may end before the first of some stop strings. Knows a tokenizer and nothing else.
"""

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"


class AnswerText:
    """The text of an answer, up to the first of some stop strings.

    With stop strings, `ends` has to hear of every token before it is fed: the answer ends with the
    token that completes one. The text ends before the string that is complete first; of several
    that are complete at once, before the longest. What may become a stop string is held back.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        """`tokenizer`: a transformers tokenizer; `stops`: strings that are not empty."""
        self._stream = TextStream(tokenizer)
        self._stops = tuple(stops)
        self._ready = ""
        self._held = ""
        self._given = ""
        self.ended = False

    def ends(self, token_id: int) -> bool:
        """Take the answer's next token; whether it completes a stop string."""
        self._ready += self._search(self._stream.feed([token_id]))
        return self.ended

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now, and was not given before; these tokens are the newest."""
        if not self._stops:
            return self._stream.feed(token_ids)
        ready, self._ready = self._ready, ""
        self._given += ready
        return ready

    def finish(self) -> str:
        """What was held back for stop strings that did not come, and for broken characters."""
        if not self._stops:
            return self._stream.finish()
        if self.ended:
            return ""
        rest = self._search(self._stream.finish()) + self._held
        self._held = ""
        self._given += rest
        return rest

    def whole(self) -> str:
        """All of the text; see `TextStream.whole`."""
        return self._given if self._stops else self._stream.whole()

    def _search(self, text: str) -> str:
        """What of `text`, and of what was held back before it, is certain."""
        for character in text:
            self._held += character
            ending = [stop for stop in self._stops if self._held.endswith(stop)]
            if ending:
                self.ended = True
                certain, self._held = self._held[: -max(map(len, ending))], ""
                return certain
        beginnings = (stop[:n] for stop in self._stops for n in range(1, len(stop)))
        kept = max((len(start) for start in beginnings if self._held.endswith(start)), default=0)
        at = len(self._held) - kept
        certain, self._held = self._held[:at], self._held[at:]
        return certain


class TextStream:
    """Decodes a growing list of tokens piece by piece.

    What a token adds to the text can depend on its neighbours (a character's bytes split over
    tokens, a word's leading space), so each piece is the difference between decoding a window with
    the new tokens and without them. The window starts at the piece before.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a transformers tokenizer."""
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._window = 0
        self._given = 0
        self._literal = _literal_replacement(tokenizer)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the text that became whole."""
        self._ids += token_ids
        return self._advance(final=False)

    def finish(self) -> str:
        """Return what was held back, replacement characters for broken bytes included."""
        return self._advance(final=True)

    def whole(self) -> str:
        """The text of all tokens, decoded at once.

        It equals the pieces together, but for a tokenizer with byte tokens when a run of them is
        no UTF-8: such a run is replaced whole, also what was a character before it went on.
        """
        return self._decode(0, len(self._ids))

    def _advance(self, final: bool) -> str:
        before = self._decode(self._window, self._given)
        after = self._decode(self._window, len(self._ids))
        if after.endswith(REPLACEMENT) and not final and not self._ends_literally():
            return ""  # the rest of a character may still come
        self._window, self._given = self._given, len(self._ids)
        return after[len(before) :]

    def _ends_literally(self) -> bool:
        """Whether the last tokens are the replacement character itself, not part of another."""
        new = len(self._ids) - self._given
        size = len(self._literal)
        return 0 < size <= new and self._ids[-size:] == self._literal

    def _decode(self, start: int, end: int) -> str:
        ids = self._ids[start:end]
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def _literal_replacement(tokenizer: Any) -> list[int]:
    """The tokens of U+FFFD itself, without those of a space that may be put in front of it."""
    ids: list[int] = tokenizer.encode(REPLACEMENT, add_special_tokens=False)
    while ids and not tokenizer.decode(ids[:1]).strip():
        ids = ids[1:]
    return ids
