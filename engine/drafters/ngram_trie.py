"""A trie of the n-grams of a text with their counts, of bounded size: the oldest leaves go.

Knows tokens only.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class TrieNode:
    """A string that n-grams of the text begin with."""

    __slots__ = ("children", "count", "depth", "parent", "token")

    def __init__(self, token: int, parent: "TrieNode | None") -> None:
        self.token = token
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.count = 0
        self.children: dict[int, TrieNode] = {}


class NgramTrie:
    """N-grams of one length; a string's count is that of the n-grams that begin with it."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: most nodes, the root aside; at least as many as an n-gram has tokens."""
        self.root = TrieNode(-1, None)
        self._capacity = capacity
        self._used: OrderedDict[TrieNode, None] = OrderedDict()
        """From the longest unused to the newest; a node is never used without its parent, which
        counts as the newer, so that the first one is a leaf."""

    def __len__(self) -> int:
        return len(self._used)

    def insert(self, ngram: Sequence[int]) -> None:
        """Count an n-gram once more."""
        node = self.root
        for token in ngram:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = TrieNode(token, node)
            child.count += 1
            node = child
        self._use(node)
        while len(self._used) > self._capacity:
            self._forget()

    def suffixes(self, text: Sequence[int], shortest: int) -> Iterator[TrieNode]:
        """Nodes of the suffixes of the text that are in the trie, the longest first."""
        for start in range(len(text) - shortest + 1):
            node: TrieNode | None = self.root
            for token in text[start:]:
                node = node.children.get(token) if node else None
            if node:
                self._use(node)
                yield node

    def _use(self, node: TrieNode) -> None:
        while node.parent:
            self._used[node] = None
            self._used.move_to_end(node)
            node = node.parent

    def _forget(self) -> None:
        oldest, _ = self._used.popitem(last=False)
        if oldest.parent:
            del oldest.parent.children[oldest.token]
