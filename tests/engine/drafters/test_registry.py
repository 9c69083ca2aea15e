"""What holds for every method, whatever it has read and learned."""

import random
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decode import Limits
from engine.drafters.base import Drafter
from engine.drafters.registry import METHODS, Method
from engine.logits import Predictions
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.stats import SOURCES, DecodeStats
from engine.tree import DraftTree
from tests.engine.drafters.drawn import PICTURE, full_of_garbage
from tests.engine.fakes import FakeTarget, answered, greedy, markov

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
VOCAB, PROMPT = 24, (3, 1, 4, 1, 5)


def drafter(method: Method, memory: TokenMemory | None = None, **options: int) -> Drafter:
    chosen = DrafterOptions(adaptive=False, min_probability=0.0, **options)  # type: ignore[arg-type]
    return METHODS[method].make(chosen, memory or TokenMemory(), PICTURE)


def test_every_name_has_a_method() -> None:
    assert get_args(Method) == tuple(METHODS)


def garbage(chance: random.Random, rows: int, k: int) -> Predictions:
    """Predictions of anything at all, pictures and the same token twice among them."""
    tokens = [*range(7), *sorted(PICTURE)]
    ids = np.array([chance.choice(tokens) for _ in range(rows * k)], np.int64).reshape(rows, k)
    probs = np.array([chance.random() / max(k, 1) for _ in range(rows * k)], np.float32)
    probs = np.sort(probs.reshape(rows, k))[:, ::-1].copy()
    return Predictions([0] * rows, ids, probs)


def trees(drafter: Drafter, text: list[int], max_depth: int, seed: int) -> Iterator[DraftTree]:
    """What is drafted while a text is read, when all that is learned on the way is garbage."""
    chance = random.Random(seed)
    drafter.start(text[:-6])
    if drafter.seeds:
        positions = [at for at, token in enumerate(text[:-6]) if token not in PICTURE]
        drafter.seed(positions, garbage(chance, len(positions), drafter.k))
    for token in text[-6:]:
        drafter.observe([token])
        tree = drafter.propose(max_depth)
        assert tree.tokens[0] == token
        yield tree
        drafter.learn([0], garbage(chance, len(tree), drafter.k))


@EVERY_METHOD
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.sampled_from([0, 1, 2, 16, 64, 300]),
    max_depth=st.integers(0, 6),
    text=st.lists(st.integers(0, 6) | st.sampled_from([90, 91]), min_size=7, max_size=40),
)
def test_every_tree_is_sound(
    method: Method, seed: int, nodes: int, max_depth: int, text: list[int]
) -> None:
    each = drafter(method, full_of_garbage(seed), nodes=nodes, max_depth=4)
    for request in (text, text[::-1]):
        for tree in trees(each, request, max_depth, seed):
            assert len(tree) <= nodes + 1
            assert max(tree.depths) <= min(max_depth, 4)
            assert PICTURE.isdisjoint(tree.tokens[1:])
            assert min(tree.tokens) >= 0
            assert min(tree.probabilities) >= 0
            siblings = list(zip(tree.parents, tree.tokens, strict=True))
            assert len(set(siblings)) == len(siblings)
            for node in range(1, len(tree)):
                parent = tree.parents[node]
                assert parent < node
                assert tree.depths[node] == tree.depths[parent] + 1
                assert 0 <= tree.sources[node] < len(SOURCES)


@EVERY_METHOD
@pytest.mark.parametrize("nodes", [0, 1, 16, 80])
def test_the_text_is_the_target_s_own_and_repetition_is_drafted(method: Method, nodes: int) -> None:
    model = markov(VOCAB, order=2, seed=2)
    text = greedy(model, PROMPT, 200)
    stats = DecodeStats()
    each = drafter(method, nodes=nodes)
    limits = Limits(200, frozenset())
    passes = answered(FakeTarget(model, PROMPT), each, PROMPT, text[0], limits, stats=stats)
    assert [text[0], *(token for tokens in passes for token in tokens)] == text
    if nodes and method != "plain":
        assert stats.mean_acceptance_length > 1.2, "a text of so few tokens repeats itself"
    else:
        assert stats.mean_acceptance_length == 1.0


@EVERY_METHOD
def test_methods_that_remember_start_from_what_the_memory_holds(method: Method) -> None:
    memory = full_of_garbage(1)
    each = drafter(method, memory, nodes=16)
    each.start([50, 51, 52])
    each.observe([53])
    assert (len(each.propose(9)) > 1) == METHODS[method].remembers
