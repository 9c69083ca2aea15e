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
    by_confidence: bool = True,
    least: float = 0.0,
) -> list[Candidate]:
    """Candidates for the next token, most probable first.

    Args:
        retrieved: what each key holds.
        specificity: weight of each key's length.
        by_confidence: whether the keys' confidences weigh too, not their lengths alone.
        least: what a key holds with less probability is left out.
    """
    rows = [(row, weight) for row, weight in zip(retrieved, specificity, strict=True) if row]
    if not rows:
        return []
    first = rows[0][0]
    if all(row is first for row, _ in rows):
        rows = rows[:1]  # one pass wrote them all
    if len(rows) == 1 and len(set(first.ids)) == len(first.ids):
        return list(zip(first.probs, first.ids, strict=True))
    scales = [
        weight * (row.confidence + LEAST_CONFIDENCE if by_confidence else 1.0)
        for row, weight in rows
    ]
    total = sum(scales) or 1.0
    fused: dict[int, float] = {}
    for (row, _), scale in zip(rows, scales, strict=True):
        share = scale / total
        for token, probability in zip(row.ids, row.probs, strict=True):
            if probability < least:
                break
            fused[token] = fused.get(token, 0.0) + share * probability
    return sorted(zip(fused.values(), fused.keys(), strict=True), reverse=True)
