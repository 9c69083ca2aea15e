"""Trees, predictions and memories that tests of drafters write by hand."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from engine.drafters.base import Drafter
from engine.logits import Predictions
from engine.memory.transitions import Prediction, TokenMemory
from engine.stats import SOURCES
from engine.tree import DraftTree

PICTURE = frozenset({90, 91})


def predicted(*rows: Sequence[tuple[int, float]]) -> Predictions:
    """One row of (token, probability) pairs a node."""
    table = np.array(rows)
    ids = table[:, :, 0].astype(np.int64)
    return Predictions(ids[:, 0].tolist(), ids, table[:, :, 1].astype(np.float32))


def paths(tree: DraftTree) -> dict[tuple[int, ...], str]:
    """The tokens from the root, excluded, to every node, and where the node came from."""
    tokens: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree)):
        tokens.append((*tokens[tree.parents[node]], tree.tokens[node]))
    named = zip(tokens[1:], tree.sources[1:], strict=True)
    return {path: SOURCES[source] for path, source in named}


def drafted(drafter: Drafter, text: Sequence[int], max_depth: int = 99) -> list[tuple[int, ...]]:
    """Start on a text, its last token being the first of the answer, and propose."""
    drafter.start(text[:-1])
    drafter.observe(text[-1:])
    return list(paths(drafter.propose(max_depth)))


def chained(drafter: Drafter, text: Sequence[int], max_depth: int = 99) -> list[int]:
    """The tokens that are drafted on a text by a method that drafts one path."""
    found = drafted(drafter, text, max_depth)
    assert all(shorter == longer[:-1] for shorter, longer in pairwise(found))
    return list(found[-1]) if found else []


def full_of_garbage(seed: int, vocab: int = 60) -> TokenMemory:
    chance = random.Random(seed)
    memory = TokenMemory()
    for token in range(vocab):
        ids = [chance.choice([*range(vocab), 90, 91]) for _ in range(4)]
        probs = sorted((chance.random() / 2 for _ in range(4)), reverse=True)
        memory.store(token, Prediction(ids, probs, chance.random()))
    return memory
