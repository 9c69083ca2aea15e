"""Which tree pays, from what a pass costs and how often guesses come true.

Pure arithmetic on a simple model of acceptance; measures nothing. Real guesses do not follow the
model, and a drafter learns online what its own are worth (see `engine.budget`); it answers how
large a tree could pay on this machine at all.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Literal, get_args

from engine.bench.cost import CostPoint

Shape = Literal["chain", "tree"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
"""How guesses stand to one another, see `guesses`."""


@dataclass(frozen=True, slots=True)
class Payoff:
    """The size at which tokens come fastest.

    Attributes:
        context: tokens before the tree.
        acceptance: probability a that the best guess behind an accepted token is accepted.
        shape: of the guesses.
        tokens: in the pass, root included, of the measured sizes.
        committed: tokens that such a pass is expected to commit, bonus token included.
        speedup: over passes of one token.
        largest: whether no larger size was measured, so that a larger one may pay still.
    """

    context: int
    acceptance: float
    shape: Shape
    tokens: int
    committed: float
    speedup: float
    largest: bool


def payoff(points: Sequence[CostPoint], acceptance: float, shape: Shape) -> Payoff:
    """The best of the sizes that were measured in one context, the smaller one of equals.

    A pass over n tokens commits E(n) = 1 + the sum of the probabilities of its n - 1 guesses, and
    is E(n) * cost(1) / cost(n) times as fast as passes of one token, if drafting is free.
    """
    most = max(point.tokens for point in points)
    expected = list(accumulate(islice(guesses(acceptance, shape), most - 1), initial=1.0))
    speedups = {point.tokens: expected[point.tokens - 1] / point.ratio for point in points}
    best = max(speedups, key=speedups.__getitem__)
    return Payoff(
        context=points[0].context,
        acceptance=acceptance,
        shape=shape,
        tokens=best,
        committed=expected[best - 1],
        speedup=speedups[best],
        largest=best == most,
    )


def guesses(acceptance: float, shape: Shape) -> Iterator[float]:
    """Probabilities that guesses are accepted, the likeliest first, without end.

    Of a `chain`: each guess behind the one before, with probability a if that one was accepted,
    so a, a^2, a^3, ... Of a `tree`: what the best guess misses, the second-best has with the same
    probability, so that the r-th best behind an accepted token is accepted with a (1 - a)^(r - 1),
    whatever came before; the best tree takes the likeliest paths, deep or wide.
    """
    paths = [-acceptance]
    while True:
        probability = -heapq.heappop(paths)
        yield probability
        heapq.heappush(paths, -probability * acceptance)  # its best child
        if shape == "tree":
            heapq.heappush(paths, -probability * (1 - acceptance))  # its next-best sibling
