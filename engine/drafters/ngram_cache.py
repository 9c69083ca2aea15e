"""The n-gram cache of llama.cpp: a chain of the most frequent followers, where they are clear.

Source: llama.cpp, `common/ngram-cache.cpp` and `examples/lookup`. Counts of what followed every
n-gram of 1 to 4 tokens are kept for this request (context) and for all before it (dynamic). The
next token is looked up in the context cache from the longest n-gram to the shortest, and then so in
the dynamic cache under stricter thresholds; it is the commonest follower, if the n-gram was seen
often enough and the follower has a large enough share. Drafting ends where neither cache knows.

The static cache, counted beforehand over a large corpus, is left out, as no method here is given a
corpus. llama.cpp merges its caches when the program ends; here, when a request starts. Of equally
common followers it takes any, we the one that was seen first.
"""

from collections.abc import Sequence

from engine.drafters.copying import CopyingDrafter
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.tree import DraftTree

LOOKUP, HISTORY = SOURCES.index("lookup"), SOURCES.index("history")
LONGEST_NGRAM = 4
Counts = dict[tuple[int, ...], dict[int, int]]
"""N-gram -> follower -> how often."""
Thresholds = tuple[tuple[int, int], ...]
"""By the n-gram's length: fewest times it was seen, smallest share of its follower in percent."""
LAX: Thresholds = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT: Thresholds = ((4, 75), (3, 66), (2, 66), (2, 66))
NO_TOKEN = -1


class NgramCacheDrafter(CopyingDrafter):
    """A chain of at most `nodes` tokens; the dynamic cache outlives requests."""

    def __init__(self, options: DrafterOptions, placeholders: frozenset[int]) -> None:
        self._dynamic: Counts = {}
        self._context: Counts = {}
        super().__init__(options, placeholders)

    def start(self, prompt: Sequence[int]) -> None:
        """Move what the last request counted to the dynamic cache and read the prompt."""
        for ngram, followers in self._context.items():
            known = self._dynamic.setdefault(ngram, {})
            for token, count in followers.items():
                known[token] = known.get(token, 0) + count
        self._context = {}
        self._window: tuple[int, ...] = ()
        self.observe(prompt)

    def propose(self, max_depth: int) -> DraftTree:
        """Look up one token after the other, each drafted one being part of the next n-gram."""
        tree = DraftTree([self._last])
        window = self._window
        for parent in range(self._longest_chain(max_depth)):
            token, source = commonest(self._context, window, LAX), LOOKUP
            if token == NO_TOKEN:
                token, source = commonest(self._dynamic, window, STRICT), HISTORY
            if token == NO_TOKEN:
                break
            tree.add(token, parent, source, 1.0)
            window = (*window, token)[-LONGEST_NGRAM:]
        return tree

    def _read(self, token: int) -> None:
        for start in range(len(self._window)):
            followers = self._context.setdefault(self._window[start:], {})
            followers[token] = followers.get(token, 0) + 1
        self._window = (*self._window, token)[-LONGEST_NGRAM:]

    def _interrupt(self) -> None:
        self._window = ()


def commonest(counts: Counts, window: tuple[int, ...], thresholds: Thresholds) -> int:
    """The clear follower of the longest n-gram at the end of the window that has one."""
    for start in range(len(window)):
        followers = counts.get(window[start:])
        if followers is None:
            continue
        fewest, percent = thresholds[len(window) - start - 1]
        seen = sum(followers.values())
        token = max(followers, key=followers.__getitem__)
        if seen >= fewest and 100 * followers[token] >= percent * seen:
            return token
    return NO_TOKEN
