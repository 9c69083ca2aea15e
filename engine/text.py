"""Text of an answer as its tokens arrive: whole characters only, nothing twice, nothing lost.

Knows a tokenizer's `decode` and nothing else.
"""

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"


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
        if after.endswith(REPLACEMENT) and not final:
            return ""  # the rest of a character may still come
        self._window, self._given = self._given, len(self._ids)
        return after[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        ids = self._ids[start:end]
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
