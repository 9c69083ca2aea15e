"""Prompt lookup decoding: copy what followed the last n-gram where it first occurred.

Source: github.com/apoorvumang/prompt-lookup-decoding (n-grams of at most 3 tokens, 10 tokens
copied), with the rule by which transformers' `prompt_lookup_num_tokens` chooses a match: the
longest n-gram that occurred before, of its occurrences the first, copied up to the end of the text
if need be (the original wants the full number of tokens and passes over matches without). Both scan
the text at every pass; here every n-gram's first place is kept in a table, which finds the same.
"""

from collections.abc import Sequence

from engine.drafters.copying import CopyingDrafter, chain
from engine.stats import SOURCES
from engine.tree import DraftTree

LOOKUP = SOURCES.index("lookup")
LONGEST_NGRAM = 3
NO_TOKEN = -1


class PromptLookupDrafter(CopyingDrafter):
    """A chain of at most `nodes` tokens, copied from this request's own text."""

    def start(self, prompt: Sequence[int]) -> None:
        """Forget the last request's text and read the prompt."""
        self._text: list[int] = []
        self._first: dict[tuple[int, ...], int] = {}
        """Where in the text an n-gram was first followed by a token."""
        self._window: tuple[int, ...] = ()
        self.observe(prompt)

    def propose(self, max_depth: int) -> DraftTree:
        """Copy what followed the longest n-gram at the end of the text that occurred before."""
        longest = self._longest_chain(max_depth)
        for start in range(len(self._window)):
            at = self._first.get(self._window[start:])
            if at is not None:
                return chain(self._last, self._text[at : at + longest], LOOKUP)
        return DraftTree([self._last])

    def _read(self, token: int) -> None:
        for start in range(len(self._window)):
            self._first.setdefault(self._window[start:], len(self._text))
        self._window = (*self._window, token)[-LONGEST_NGRAM:]
        self._text.append(token)

    def _interrupt(self) -> None:
        self._window = ()
        self._text.append(NO_TOKEN)
