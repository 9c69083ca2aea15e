"""A draft tree as flat arrays, and the pure functions of it: mask and accepted path.

Knows tokens and parents, nothing of models or memories.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class DraftTree:
    """Guessed continuations of the last committed token, which is the root (node 0).

    All lists have one item a node; a parent stands before its children, siblings differ in token.

    Attributes:
        tokens: token ids.
        parents: index of each node's parent; -1 for the root.
        depths: distance from the root; 0 for the root.
        sources: index into `engine.stats.SOURCES` of what proposed the node; -1 for the root.
        probabilities: estimated probability that the node is reached; 1.0 for the root.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    sources: list[int] = field(default_factory=lambda: [-1])
    probabilities: list[float] = field(default_factory=lambda: [1.0])

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, source: int, probability: float) -> int:
        """Append a node and return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.sources.append(source)
        self.probabilities.append(probability)
        return len(self.tokens) - 1

    def truncate(self, size: int) -> None:
        """Keep the first `size` nodes."""
        for column in (self.tokens, self.parents, self.depths, self.sources, self.probabilities):
            del column[size:]


LANES = 32
"""Keys of one step in a CPU's sums of attention in half precision (AVX-512: two vectors)."""


def places(parents: Sequence[int], lanes: int) -> list[int]:
    """Where each node's key stands behind the committed ones; the root's place is 0.

    With one lane they stand side by side. With more, each stands behind its parent and, modulo
    `lanes`, where it would stand were there no other branch: the sums over what it sees then have
    the same terms in the same order as in a text without branches, and zeros between them, and
    come out the same, bit by bit.
    """
    if lanes == 1:
        return list(range(len(parents)))
    found = [0]
    taken = {0}
    for parent in parents[1:]:
        place = found[parent] + 1
        while place in taken:
            place += lanes
        taken.add(place)
        found.append(place)
    return found


def visibility(parents: Sequence[int], at: Sequence[int]) -> NDArray[np.bool_]:
    """At which places a node attends to keys: its own and its ancestors'.

    Args:
        at: each node's place.

    Returns:
        [n, m] bool, where m - 1 is the last of the places.
    """
    visible = np.zeros((len(parents), max(at) + 1), np.bool_)
    for node, (parent, place) in enumerate(zip(parents, at, strict=True)):
        if node:
            visible[node] = visible[parent]
        visible[node, place] = True
    return visible


def accepted_path(tree: DraftTree, choices: Sequence[int]) -> list[int]:
    """Walk from the root, each time to the child that equals the target's own choice.

    Args:
        choices: the target's next token at every node.

    Returns:
        Node indices from the root on, ascending. The tokens that a pass commits are the choices
        at these nodes: the accepted drafts and, at the last node, the bonus token.
    """
    path = [0]
    for node in range(1, len(tree)):
        if tree.parents[node] == path[-1] and tree.tokens[node] == choices[path[-1]]:
            path.append(node)
    return path
