"""SuffixDecoding (arXiv 2411.04975): the likeliest continuations of repeated suffixes, by counts.

Source: the paper and Snowflake's ArcticInference. One suffix tree holds this request's prompt and
output, another the outputs of all requests before it. Where a suffix of the text, m tokens long, is
found in a tree, at most alpha * m nodes below it are drafted, likeliest first: a node's probability
is its parent's times its count's share among its siblings. Of all suffixes and both trees the draft
with the largest sum of probabilities is taken; of equals the one with the longest match, then the
request's own. Alpha is 1 and the least probability 0.1, as in ArcticInference.

Shares among siblings are the paper's; ArcticInference divides by the parent's count, which the end
of the text lowers. It also adds an output to the global tree at once, while the request's own tree
holds it anyway; here, when the next request starts. It forgets the oldest requests after 100,000;
we none. The trees are suffix automata, whose states are the nodes of a suffix tree of the reversed
text: they give the same counts at a tenth of the code.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from engine.drafters.copying import CopyingDrafter
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.suffix import SuffixIndex
from engine.tree import DraftTree

LOOKUP, HISTORY = SOURCES.index("lookup"), SOURCES.index("history")
ALPHA = 1.0
LEAST_PROBABILITY = 0.1
Match = tuple[int, int]
"""A state of an index, and how many tokens at the end of the text led there."""


class CountedIndex(SuffixIndex):
    """A suffix automaton that knows how often each of its strings occurred."""

    def __init__(self) -> None:
        super().__init__(recency_steps=0)
        self._counts = [0]

    def separate(self) -> None:
        """End a text; nothing matches across the separator, which occurs nowhere else."""
        if self.text and self.text[-1] >= 0:
            self._append(-1 - len(self.text))

    def own_match(self) -> Match:
        """The longest suffix of the text itself that occurred before."""
        state = max(self._link[self._last], 0)
        return state, self._length[state]

    def follow(self, match: Match, token: int) -> Match:
        """The longest match after one more token of a text that is not this one."""
        state, length = match
        while state > 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token in self._next[state]:
            return self._next[state][token], length + 1
        return 0, 0

    def shorter(self, match: Match) -> Iterator[Match]:
        """The match and, of its suffixes, the longest ones that occurred at more places."""
        state, length = match
        while state > 0:
            yield state, length
            state = self._link[state]
            length = self._length[state]

    def followers(self, state: int) -> Iterator[tuple[float, int, int]]:
        """Share among all that followed a state's strings, the token, and the state behind it."""
        found = [(self._counts[at], token, at) for token, at in self._next[state].items()]
        total = sum(count for count, token, _ in found if token >= 0)
        for count, token, at in found:
            if token >= 0:
                yield count / total, token, at

    def _append(self, token: int) -> None:
        self._counts.append(0)
        super()._append(token)
        state = self._last
        while state > 0:
            self._counts[state] += 1
            state = self._link[state]

    def _linked(self, state: int, token: int) -> int:
        longer = self._next[state][token]
        linked = super()._linked(state, token)
        if linked != longer:  # split off: so far it occurred where the longer one did
            self._counts.append(self._counts[longer])
        return linked


class SuffixDecodingDrafter(CopyingDrafter):
    """A tree of at most `nodes` tokens; the index of earlier outputs outlives requests."""

    def __init__(self, options: DrafterOptions, placeholders: frozenset[int]) -> None:
        self._global = CountedIndex()
        self._output: list[int] = []
        super().__init__(options, placeholders)

    def start(self, prompt: Sequence[int]) -> None:
        """Move the last request's output to the global index and read the prompt."""
        self._global.extend(self._output)
        self._global.separate()
        self._local = CountedIndex()
        self._global_match = (0, 0)
        self.observe(prompt)
        self._output = []

    def propose(self, max_depth: int) -> DraftTree:
        """The draft of the largest expected length."""
        max_depth = min(max_depth, self._options.max_depth)
        best, best_score = DraftTree([self._last]), 0.0
        for index, longest, source in (
            (self._local, self._local.own_match(), LOOKUP),
            (self._global, self._global_match, HISTORY),
        ):
            for state, length in index.shorter(longest):
                budget = min(self._options.nodes, int(ALPHA * length))
                if budget <= best_score:
                    break  # not even certain nodes would be worth more
                tree = self._grow(index, state, budget, max_depth, source)
                score = sum(tree.probabilities) - 1.0
                if score > best_score:
                    best, best_score = tree, score
        return best

    def _grow(
        self, index: CountedIndex, state: int, budget: int, max_depth: int, source: int
    ) -> DraftTree:
        """The likeliest nodes below a state; the heap holds (minus probability, parent, token,
        state) of those that may be added."""
        tree = DraftTree([self._last])
        heap: list[tuple[float, int, int, int]] = []
        node = 0
        while True:
            if tree.depths[node] < max_depth:
                for share, token, at in index.followers(state):
                    reached = tree.probabilities[node] * share
                    if reached >= LEAST_PROBABILITY:
                        heappush(heap, (-reached, node, token, at))
            if not heap or len(tree) > budget:
                return tree
            minus, parent, token, state = heappop(heap)
            node = tree.add(token, parent, source, -minus)

    def _read(self, token: int) -> None:
        self._local.extend((token,))
        self._output.append(token)
        self._global_match = self._global.follow(self._global_match, token)

    def _interrupt(self) -> None:
        self._local.separate()
        self._output.append(-1)
        self._global_match = (0, 0)
