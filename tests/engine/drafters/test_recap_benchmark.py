"""What drafting and learning cost a pass: `pytest tests/engine/drafters --benchmark-only`.

The memories are full: a token memory over a whole vocabulary of 49,152 ids, contextual memories of a
long request, and a text with repeated suffixes; the target's predictions are Zipf-like.
"""

from typing import Any

import numpy as np
import pytest

from engine.drafters.recap import RecapDrafter
from engine.logits import Predictions
from engine.memory.table import TransitionTable
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions

VOCAB, K, PROMPT = 49_152, 8, 4_096
COMMON = 400
"""Ids that the text is made of: few enough that keys of three tokens recur."""


def made_up_predictions(rng: np.random.Generator, rows: int) -> Predictions:
    ids = rng.zipf(1.3, (rows, 4 * K)) % COMMON
    ids = np.array([list(dict.fromkeys([*row, *range(K)]))[:K] for row in ids.tolist()])
    probs = np.sort(rng.dirichlet(np.full(K, 0.2), rows).astype(np.float32))[:, ::-1].copy()
    return Predictions(ids[:, 0].tolist(), ids, probs)


def full_token_memory(rng: np.random.Generator) -> TokenMemory:
    predictions = made_up_predictions(rng, VOCAB)
    keys = np.arange(VOCAB, dtype=np.int32)
    next_ids = predictions.top_ids.astype(np.int32)
    uses = np.ones(VOCAB, np.uint32)
    return TokenMemory(TransitionTable(keys, next_ids, predictions.top_probs, uses))


@pytest.mark.parametrize("nodes", [16, 32])
def test_a_pass_of_drafting_and_learning(benchmark: Any, nodes: int) -> None:
    rng = np.random.default_rng(0)
    options = DrafterOptions(nodes=nodes, min_probability=0.0)
    drafter = RecapDrafter(options, full_token_memory(rng), frozenset())
    drafter.start((rng.zipf(1.3, PROMPT) % COMMON).tolist())
    drafter.seed(range(PROMPT), made_up_predictions(rng, PROMPT))
    passes = [made_up_predictions(rng, nodes + 1) for _ in range(64)]

    def one_pass(predictions: Predictions) -> int:
        tree = drafter.propose(max_depth=64)
        drafter.learn([0], predictions)
        drafter.observe([predictions.choices[0]])
        return len(tree)

    rounds = iter(passes * 1000)
    sizes = benchmark(lambda: one_pass(next(rounds)))
    assert sizes == nodes + 1
