"""Which size pays: on curves and with probabilities that a person can check."""

from itertools import islice

import pytest

from engine.bench.cost import CostPoint
from engine.bench.payoff import SHAPES, Shape, guesses, payoff


def curve(ratios: dict[int, float]) -> list[CostPoint]:
    return [CostPoint(512, n, 10 * r, 10 * r, 10 * r, 5, r, None) for n, r in ratios.items()]


def first(acceptance: float, shape: Shape, count: int) -> list[float]:
    return list(islice(guesses(acceptance, shape), count))


def test_guesses_of_a_chain_must_all_come_true() -> None:
    assert first(0.5, "chain", 4) == [0.5, 0.25, 0.125, 0.0625]


def test_a_tree_takes_the_likeliest_paths_deep_or_wide() -> None:
    # One guess 0.6; behind it 0.36; beside it 0.24; then 0.216 at depth 3, and 0.144 twice.
    assert first(0.6, "tree", 6) == pytest.approx([0.6, 0.36, 0.24, 0.216, 0.144, 0.144])


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
def test_guesses_come_the_likeliest_first_and_a_tree_is_never_worse(acceptance: float) -> None:
    tree, chain = first(acceptance, "tree", 200), first(acceptance, "chain", 200)
    assert tree == sorted(tree, reverse=True)
    assert sum(tree) > sum(chain)


def test_the_size_that_pays_most_is_found() -> None:
    # Commits 1, 1.5, 1.875 and 1.99 tokens for 1, 1.1, 1.25 and 2 times the cost.
    found = payoff(curve({1: 1.0, 2: 1.1, 4: 1.25, 8: 2.0}), 0.5, "chain")
    assert (found.context, found.tokens, found.largest) == (512, 4, False)
    assert found.committed == pytest.approx(1.875)
    assert found.speedup == pytest.approx(1.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_edges_of_a_curve(shape: Shape) -> None:
    free = payoff(curve({1: 1.0, 8: 1.0, 64: 1.0}), 0.5, shape)
    assert (free.tokens, free.largest) == (64, True)
    dear = payoff(curve({1: 1.0, 2: 2.0, 3: 3.0}), 0.5, shape)
    assert (dear.tokens, dear.committed, dear.speedup) == (1, 1.0, 1.0)
