"""SAM-Decoding (arXiv 2411.10666): copy what followed the longest suffix that occurred before.

Source: the paper and its repository, github.com/hyx1999/SAM-Decoding. A suffix automaton of prompt
and output finds the longest suffix of the text that occurred before and where it did first. Alone,
four tokens are copied for each one that matched, at most 59 beside the root. Over Token Recycling,
matches of at least 5 tokens are copied, 39 tokens far; else Token Recycling drafts its tree.

The second automaton, of a corpus prepared beforehand, is left out, as no method here is given a
corpus. The repository's combination has a smaller recycling tree of its own, and copies from a
shorter suffix where the text ends soon after the longest one; neither is explained. Here the tree
is that of `engine.drafters.recycling`, and the longest suffix is copied.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.drafters.copying import CopyingDrafter, chain
from engine.drafters.recycling import TokenRecyclingDrafter
from engine.logits import Predictions
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.suffix import SuffixIndex
from engine.tree import DraftTree

LOOKUP = SOURCES.index("lookup")
COPIED_PER_MATCHED, MOST_COPIED = 4, 59
"""Alone."""
MOST_COPIED_OVER = 39
"""Over Token Recycling."""
LEAST_MATCH = 5
"""Shorter matches are left to Token Recycling."""


class SamDrafter(CopyingDrafter):
    """A chain of at most `nodes` tokens, copied from this request's own text."""

    def start(self, prompt: Sequence[int]) -> None:
        """Forget the last request's text and read the prompt."""
        self._index = SuffixIndex(recency_steps=0)
        self.observe(prompt)

    @property
    def match_length(self) -> int:
        """Tokens in the longest suffix that occurred before."""
        return self._index.match_length

    def propose(self, max_depth: int) -> DraftTree:
        """Copy the more, the longer the match is."""
        return self.copy(min(max_depth, COPIED_PER_MATCHED * self.match_length, MOST_COPIED))

    def copy(self, tokens: int) -> DraftTree:
        """A chain of at most this many tokens."""
        start = self._index.match_end
        copied = self._index.text[start : start + self._longest_chain(tokens)]
        return chain(self._last, copied, LOOKUP)

    def _read(self, token: int) -> None:
        self._index.extend((token,))

    def _interrupt(self) -> None:
        text = self._index.text
        if text and text[-1] >= 0:
            # A separator that occurs nowhere else, so that no match crosses a picture.
            self._index.extend((-1 - len(text),))


class SamRecyclingDrafter:
    """Copies long matches, and recycles tokens where there is none."""

    seeds = 0
    states = False

    def __init__(
        self, options: DrafterOptions, memory: TokenMemory, placeholders: frozenset[int]
    ) -> None:
        self.k = options.k
        self._sam = SamDrafter(options, placeholders)
        self._recycling = TokenRecyclingDrafter(options, memory, placeholders)
        self._tree = DraftTree([-1])

    def start(self, prompt: Sequence[int]) -> None:
        """Forget the last request's text; the matrix stays."""
        self._sam.start(prompt)
        self._recycling.start(prompt)

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """As a new request."""
        self.start([*kept, *new])

    def recognise(self, states: NDArray[np.uint64]) -> None:
        """Nothing to learn."""

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """Nothing to learn."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        self._sam.observe(tokens)
        self._recycling.observe(tokens)

    def propose(self, max_depth: int) -> DraftTree:
        """A chain where the match is long enough, else a tree."""
        if self._sam.match_length >= LEAST_MATCH:
            self._tree = self._sam.copy(min(max_depth, MOST_COPIED_OVER))
        else:
            self._tree = self._recycling.propose(max_depth)
        return self._tree

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Replace the matrix' rows of all drafted tokens, whichever method drafted them."""
        self._recycling.adjacency.store(self._tree.tokens, predictions)
