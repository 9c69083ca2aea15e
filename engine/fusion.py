"""Fuses what the keys of one tree node retrieved into one ranked list of candidates.

Each retrieved distribution is weighted by its key's specificity times its confidence, the weights
are normalised and the distributions summed (DESIGN section 1). Knows no memory and no tree.
"""

from collections.abc import Sequence

from engine.memory.transitions import Prediction

Candidate = tuple[float, int]
"""Probability and token id."""

Retrieved = tuple[Prediction | None, Prediction | None, Prediction | None]
"""What a node's one-, two- and three-token keys hold."""

LEAST_CONFIDENCE = 1e-3
"""So that keys that are all clueless still share their weight by specificity."""


def fuse(
    retrieved: Retrieved,
    specificity: Sequence[float],
    copied: Candidate,
    by_confidence: bool = True,
) -> list[Candidate]:
    """Candidates for the next token, most probable first.

    Args:
        retrieved: what each key holds.
        specificity: weight of each key's length.
        copied: what a repeated suffix suggests, which stands if it is surer than the memories;
            probability 0 for nothing.
        by_confidence: whether the keys' confidences weigh too, not their lengths alone.
    """
    fused: dict[int, float] = {}
    rows = [(row, weight) for row, weight in zip(retrieved, specificity, strict=True) if row]
    if all(row is rows[0][0] for row, _ in rows[1:]):
        rows = rows[:1]  # one pass wrote them all
    scales = [
        weight * (row.confidence + LEAST_CONFIDENCE if by_confidence else 1.0)
        for row, weight in rows
    ]
    total = sum(scales) or 1.0
    for (row, _), scale in zip(rows, scales, strict=True):
        share = scale / total
        for token, probability in zip(row.ids, row.probs, strict=True):
            fused[token] = fused.get(token, 0.0) + share * probability
    if copied[0] > fused.get(copied[1], 0.0):
        fused[copied[1]] = copied[0]
    return sorted([(probability, token) for token, probability in fused.items()], reverse=True)
