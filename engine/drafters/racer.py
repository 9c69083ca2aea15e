"""RACER (arXiv 2604.14885): retrieved n-grams first, the target's recycled predictions after them.

Source: the paper and its repository, github.com/hkr04/RACER. All 10-grams of prompt and output are
counted in a trie of at most 10,000 nodes, the longest unused going first; it outlives requests.
Every suffix of the text of at least 2 tokens that is in the trie begins a draft; of all nodes below
them the commonest are taken, of equals those nearer to the trie's root. What is left of the budget
goes to a tree of the target's newest top 8 after every token ("copy-logit"), filled breadth first:
the root has 8 children, the best of which has half as many, every further one half as many as the
sibling before it, but at least 1; so on below, except that a best child of those has as many as its
parent. Both trees are merged. The predictions are those of all nodes of every pass and, before the
first, of the prompt; RACER takes all its positions, we those of text.

The published code finds the suffixes with the links of an Aho-Corasick automaton, which it sets up
once a request and which are incomplete for n-grams that come later. Here suffixes of at most 9
tokens are looked up one by one, which finds all of them. It takes 64 nodes, the root included, but
counts the matches themselves among them, and nodes that both trees have twice. We count what is
drafted; at small budgets that is much in RACER's favour.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from engine.drafters.adjacency import Adjacency
from engine.drafters.ngram_trie import NgramTrie
from engine.logits import Predictions
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.tree import DraftTree

LOOKUP, RECYCLED = SOURCES.index("lookup"), SOURCES.index("recycled")
NGRAM = 10
CAPACITY = 10_000
SHORTEST_MATCH = 2


class RacerDrafter:
    """A tree of at most `nodes` tokens; trie and predictions outlive requests."""

    seeds = 256
    """The paper's are all; behind a long prompt they would cost as much as many passes."""
    states = False

    def __init__(
        self, options: DrafterOptions, memory: TokenMemory, placeholders: frozenset[int]
    ) -> None:
        """`placeholders`: ids of image and video features, never keyed, drafted or matched."""
        self.k = options.k
        self._options = options
        self._adjacency = Adjacency(memory, placeholders)
        self._placeholders = placeholders
        self._trie = NgramTrie(CAPACITY)
        self.start(())

    def start(self, prompt: Sequence[int]) -> None:
        """Read the prompt."""
        self._prompt = prompt
        self._window: list[int] = []
        self._tree = DraftTree([-1])
        self.observe(prompt)

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Read the conversation anew."""
        self.start([*kept, *new])
        self._prompt = new

    def recognise(self, states: NDArray[np.uint64]) -> None:
        """Nothing to learn."""

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """Learn what the target predicts inside the prompt."""
        self._adjacency.store([self._prompt[position] for position in positions], predictions)

    def observe(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed, counting every n-gram that they complete."""
        for token in tokens:
            self._last = token
            if token in self._placeholders:
                self._window = []
                continue
            self._window = [*self._window[1 - NGRAM :], token]
            if len(self._window) == NGRAM:
                self._trie.insert(self._window)

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Replace the predictions after all drafted tokens, accepted or not."""
        self._adjacency.store(self._tree.tokens, predictions)

    def propose(self, max_depth: int) -> DraftTree:
        """Retrieve, then fill up with recycled predictions."""
        merged = _MergedTree(self._last, min(max_depth, self._options.max_depth))
        self._retrieve(merged)
        self._recycle(merged)
        self._tree = merged.tree
        return self._tree

    def _retrieve(self, merged: "_MergedTree") -> None:
        """Add the commonest continuations of all matches.

        The heap holds (minus count, depth in the trie, order, node of the trie, parent in the tree,
        where -1 stands for a match itself).
        """
        matches = self._trie.suffixes(self._window[1 - NGRAM :], SHORTEST_MATCH)
        heap = [(-each.count, each.depth, i, each, -1) for i, each in enumerate(matches)]
        heapify(heap)
        order = len(heap)
        while heap and len(merged.tree) <= self._options.nodes:
            minus, _, _, found, parent = heappop(heap)
            node = 0
            if parent >= 0 and found.parent:
                share = -minus / found.parent.count
                node = merged.add(found.token, parent, LOOKUP, share)
            if not merged.full_depth(node):
                for child in found.children.values():
                    heappush(heap, (-child.count, child.depth, order, child, node))
                    order += 1

    def _recycle(self, merged: "_MergedTree") -> None:
        """Fill up from the adjacency matrix; the queue holds nodes and their breadths."""
        queue = deque([(0, self.k)])
        while queue:
            node, breadth = queue.popleft()
            if merged.full_depth(node):
                continue
            narrower = breadth if merged.tree.depths[node] == 1 else breadth // 2
            for token, probability in self._adjacency.followers(merged.tree.tokens[node])[:breadth]:
                if len(merged.tree) > self._options.nodes:
                    return
                child = merged.add(token, node, RECYCLED, probability)
                queue.append((child, max(narrower, 1)))
                narrower //= 2


class _MergedTree:
    """A tree to which nodes may be added that it already has."""

    def __init__(self, root: int, max_depth: int) -> None:
        self.tree = DraftTree([root])
        self._max_depth = max_depth
        self._children: dict[tuple[int, int], int] = {}

    def full_depth(self, node: int) -> bool:
        """Whether a node must not have children."""
        return self.tree.depths[node] >= self._max_depth

    def add(self, token: int, parent: int, source: int, share: float) -> int:
        """The index of a node, which is added where it is missing.

        Args:
            share: probability of the node after its parent.
        """
        node = self._children.get((parent, token))
        if node is None:
            reached = self.tree.probabilities[parent] * share
            node = self._children[parent, token] = self.tree.add(token, parent, source, reached)
        return node
