"""Token Recycling (arXiv 2408.08696): a fixed tree, filled from an adjacency matrix.

Source: the paper and its repository, github.com/Luowaterbi/TokenRecycling. The matrix holds the
target's top 8 tokens after every token; each pass replaces the rows of all tokens of its tree, and
the matrix outlives requests. The tree, "2.2.2", has 80 nodes below the root; a node is given by the
ranks on its way from the root. The prompt's predictions are not used.

The published matrix starts with zeros, so that its trees are always full, of token 0 where nothing
is known; here such nodes are left out. Of equal tokens in one tree the last one's prediction stays;
on a GPU, where all are written at once, it may be any. The smaller trees are ours, as only one size
is published: the first N nodes that can be filled, those with most nodes of "2.2.2" below them
first, which tells how likely its authors found them, and of equals those of the better ranks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.drafters.adjacency import Adjacency
from engine.drafters.base import PlainDrafter
from engine.logits import Predictions
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.tree import DraftTree

RECYCLED = SOURCES.index("recycled")
WIDTHS = (
    ":8 0:8 1:4 2:3 3:2 4:1 5:1 6:1 7:1 "
    "00:8 01:3 02:2 03:1 04:1 05:1 06:1 07:1 10:2 11:1 20:1 30:1 40:1 50:1 "
    "000:5 001:2 002:1 003:1 004:1 010:1 020:1 100:1 200:1 300:1 "
    "0000:3 0001:1 0002:1 0010:1 0100:1 1000:1 00000:2 00010:1"
)
"""The ranks that lead to a node of "2.2.2", one digit each, and how many children it has."""


class TemplateNode(NamedTuple):
    """Its parent's index in the template, where the root is 0, and its rank below the parent."""

    parent: int
    rank: int


def template() -> list[TemplateNode]:
    """The 80 nodes of "2.2.2", the best first; a parent stands before its children."""
    widths = (item.split(":") for item in WIDTHS.split())
    paths = [f"{path}{rank}" for path, width in widths for rank in range(int(width))]

    def worth(path: str) -> tuple[int, int, str]:
        below = sum(other.startswith(path) for other in paths)
        return -below, sum(map(int, path)), path

    paths.sort(key=worth)
    index = {path: i for i, path in enumerate(["", *paths])}
    return [TemplateNode(index[path[:-1]], int(path[-1])) for path in paths]


class TokenRecyclingDrafter(PlainDrafter):
    """The best `nodes` of the tree that the matrix can fill."""

    def __init__(
        self, options: DrafterOptions, memory: TokenMemory, placeholders: frozenset[int]
    ) -> None:
        super().__init__()
        self.k = options.k
        self.adjacency = Adjacency(memory, placeholders)
        self._options = options
        self._template = template()
        self._tree = DraftTree([self._last])

    def propose(self, max_depth: int) -> DraftTree:
        """Fill the template from the root on."""
        max_depth = min(max_depth, self._options.max_depth)
        self._tree = tree = DraftTree([self._last])
        filled: list[int | None] = [0]
        followers: dict[int, list[tuple[int, float]]] = {}
        for above, rank in self._template:
            if len(tree) > self._options.nodes:
                break
            parent = filled[above]
            filled.append(None)
            if parent is None or tree.depths[parent] >= max_depth:
                continue
            if parent not in followers:
                followers[parent] = self.adjacency.followers(tree.tokens[parent])
            if rank < len(followers[parent]):
                token, probability = followers[parent][rank]
                reached = tree.probabilities[parent] * probability
                filled[-1] = tree.add(token, parent, RECYCLED, reached)
        return tree

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Replace the rows of all the tree's tokens, accepted or not, in the order of its nodes."""
        self.adjacency.store(self._tree.tokens, predictions)
