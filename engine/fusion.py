"""Fuses what the keys of one tree node retrieved into one distribution.

Each retrieved distribution is weighted by its key's specificity times its confidence, the weights
are normalised and the distributions summed (DESIGN section 1). Knows no memory and no tree.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add

from engine.memory.transitions import Prediction, added

LEAST_CONFIDENCE = 1e-3
"""So that keys that are all clueless still share their weight by specificity."""


def fuse(
    rows: Sequence[Prediction],
    specificity: Sequence[float],
    by_confidence: bool = True,
    least: float = 0.0,
) -> dict[int, float]:
    """Candidates for the next token and their probabilities, in no order.

    Args:
        rows: what was retrieved.
        specificity: of each row's key, or of its part in it.
        by_confidence: whether the rows' confidences weigh too, not their keys' lengths alone.
        least: what a row gives less probability is left out.
    """
    if len(rows) == 1:
        return added(rows, (1.0,), least)
    weights = specificity
    if by_confidence:
        pairs = zip(rows, specificity, strict=True)
        weights = [weight * (row.confidence + LEAST_CONFIDENCE) for row, weight in pairs]
    total = reduce(add, weights, 0.0)
    return added(rows, [weight / total for weight in weights], least)
