"""Fuses what the keys of one tree node retrieved into one distribution.

Each retrieved distribution is weighted by its key's specificity times its confidence, the weights
are normalised and the distributions summed (DESIGN section 1). Knows no memory and no tree.
"""

from collections.abc import Sequence

from engine.memory.transitions import Prediction, added

Retrieved = tuple[Prediction | None, Prediction | None, Prediction | None]
"""What a node's one-, two- and three-token keys hold."""

LEAST_CONFIDENCE = 1e-3
"""So that keys that are all clueless still share their weight by specificity."""


def fuse(
    retrieved: Retrieved,
    specificity: Sequence[float],
    by_confidence: bool = True,
    least: float = 0.0,
) -> dict[int, float]:
    """Candidates for the next token and their probabilities, in no order.

    Args:
        retrieved: what each key holds.
        specificity: weight of each key's length.
        by_confidence: whether the keys' confidences weigh too, not their lengths alone.
        least: what a key holds with less probability is left out.
    """
    rows: list[Prediction] = []
    weights: list[float] = []
    for row, weight in zip(retrieved, specificity, strict=True):
        if row is None:
            continue
        if rows and row is rows[-1]:  # one pass wrote both
            weights[-1] += weight
        else:
            rows.append(row)
            weights.append(weight)
    if by_confidence and len(rows) > 1:
        pairs = zip(rows, weights, strict=True)
        weights = [weight * (row.confidence + LEAST_CONFIDENCE) for row, weight in pairs]
    total = sum(weights)
    return added(rows, [weight / total for weight in weights], least)
