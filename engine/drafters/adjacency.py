"""The target's newest top-k predictions after a token, as Token Recycling and RACER keep them.

That is RECAP's token memory, so the rivals share its class, and its file where one is used.
"""

from collections.abc import Sequence

from engine.logits import Predictions
from engine.memory.transitions import TokenMemory, predictions_of


class Adjacency:
    """Rows of a matrix: token -> its likeliest followers."""

    def __init__(self, memory: TokenMemory, placeholders: frozenset[int]) -> None:
        """`placeholders` are neither rows nor followers."""
        self._memory = memory
        self._placeholders = placeholders

    def followers(self, token: int) -> list[tuple[int, float]]:
        """Different tokens that may follow, with their probabilities, likeliest first."""
        row = self._memory.recall(token)
        if row is None:
            return []
        found: dict[int, float] = {}
        for follower, probability in zip(row.ids, row.probs, strict=True):
            # Probability 0 marks what only fills a row up.
            if probability > 0 and follower not in self._placeholders:
                found.setdefault(follower, probability)
        return list(found.items())

    def store(self, tokens: Sequence[int], predictions: Predictions) -> None:
        """Replace the rows of tokens by what was predicted after each; of equals the last stays."""
        rows = predictions_of(predictions.top_ids, predictions.top_probs)
        for token, row in zip(tokens, rows, strict=True):
            if token not in self._placeholders:
                self._memory.store(token, row)
