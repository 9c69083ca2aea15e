"""What drafting and learning cost a pass: `pytest -n 0 tests/engine/drafters --benchmark-only`.

The memories are full: a token memory over a whole vocabulary of 49,152 ids, as many longer keys of
earlier requests as a file keeps, contextual memories of a long request, as many states of common
tokens as are kept, and a text with repeated suffixes; the target's predictions are Zipf-like.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import kernels
from engine.drafters.base import Drafter
from engine.drafters.recap import RecapDrafter
from engine.drafters.recap_native import quickened
from engine.drafters.registry import METHODS, Method
from engine.logits import Predictions
from engine.memory.table import (
    PAIR,
    PHRASE_K,
    PHRASES_MOST,
    TOKEN_BITS,
    TRIPLE,
    PhraseTable,
    TransitionTable,
)
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.states import WORDS

VOCAB, K, PROMPT = 49_152, 8, 4_096
COMMON = 400
"""Ids that the text is made of: few enough that keys of three tokens recur."""


def made_up_predictions(rng: np.random.Generator, rows: int) -> Predictions:
    ids = rng.zipf(1.3, (rows, 4 * K)) % COMMON
    ids = np.array([list(dict.fromkeys([*row, *range(K)]))[:K] for row in ids.tolist()])
    probs = np.sort(rng.dirichlet(np.full(K, 0.2), rows).astype(np.float32))[:, ::-1].copy()
    return Predictions(ids[:, 0].tolist(), ids, probs, made_up_states(rng, rows))


def made_up_states(rng: np.random.Generator, rows: int) -> NDArray[np.uint64]:
    return rng.integers(0, 1 << 63, (rows, WORDS), np.uint64)


def full_token_memory(rng: np.random.Generator) -> TokenMemory:
    predictions = made_up_predictions(rng, VOCAB)
    keys = np.arange(VOCAB, dtype=np.int32)
    next_ids = predictions.top_ids.astype(np.int32)
    uses = np.ones(VOCAB, np.uint32)
    table = TransitionTable(keys, next_ids, predictions.top_probs, uses)
    return TokenMemory(table, full_of_phrases(table))


def full_of_phrases(rows: TransitionTable) -> PhraseTable:
    """What follows one token, after every pair of common ones and some triples that end with it."""
    first, second = np.divmod(np.arange(PHRASES_MOST, dtype=np.uint64), COMMON)
    third, first = np.divmod(first, COMMON)
    keys: NDArray[np.uint64] = np.where(third == 0, np.uint64(PAIR), np.uint64(TRIPLE))
    keys += (third << np.uint64(2 * TOKEN_BITS)) + (first << np.uint64(TOKEN_BITS)) + second
    last = second.astype(np.intp)
    few = rows.with_k(PHRASE_K)
    stamps = np.ones(PHRASES_MOST, np.uint32)
    runs = np.ones(PHRASES_MOST, np.uint8)
    return PhraseTable(keys, few.next_ids[last], few.probs[last], stamps, runs)


@pytest.mark.parametrize("native", [False, True], ids=["python", "c++"])
@pytest.mark.parametrize("nodes", [16, 32])
def test_a_pass_of_recap(benchmark: Any, nodes: int, native: bool) -> None:
    rng = np.random.default_rng(0)
    options = DrafterOptions(nodes=nodes, adaptive=False, min_probability=0.0)
    drafter: Drafter = RecapDrafter(options, full_token_memory(rng), frozenset())
    if native:
        kernels.load()
        drafter = quickened(drafter)
    assert benchmark(passes(drafter, rng, nodes)) == nodes + 1


@pytest.mark.parametrize("method", METHODS)
def test_a_pass_at_the_published_size(benchmark: Any, method: Method) -> None:
    rng = np.random.default_rng(0)
    options = METHODS[method].published
    drafter = METHODS[method].make(options, full_token_memory(rng), frozenset())
    assert 1 <= benchmark(passes(drafter, rng, options.nodes)) <= options.nodes + 1


def passes(drafter: Drafter, rng: np.random.Generator, nodes: int) -> Callable[[], int]:
    """A function that does one pass after the other; it returns the size of the tree."""
    drafter.start((rng.zipf(1.3, PROMPT) % COMMON).tolist())
    if drafter.states:
        drafter.recognise(made_up_states(rng, PROMPT))
    if drafter.seeds:
        drafter.seed(range(PROMPT), made_up_predictions(rng, PROMPT))
    answers = cycle([made_up_predictions(rng, nodes + 1) for _ in range(64)])

    def one_pass() -> int:
        tree = drafter.propose(max_depth=64)
        seen, n = next(answers), len(tree)
        states = seen.states[:n] if drafter.states and seen.states is not None else None
        first = Predictions(seen.choices[:n], seen.top_ids[:n], seen.top_probs[:n], states)
        drafter.learn([0], first)
        drafter.observe([seen.choices[0]])
        return n

    return one_pass
