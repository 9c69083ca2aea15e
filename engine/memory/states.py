"""What the target predicted in which of its states; in RAM alone.

Under each token are the predictions behind it, with the state before the token, in which it was
chosen, and the state behind it, in which the prediction was made. A prediction in a similar state
foresees better than a newer one does: the state knows the text and the pictures before the token.
"""

from collections import deque
from collections.abc import Iterable
from functools import reduce
from math import exp
from operator import add
from typing import NamedTuple

from engine.memory.transitions import Prediction

FADING = 6.4
"""A prediction weighs 1/e of another one, if its state differs by so many bits more."""
WINDOW = 24
"""Bits by which a state may differ more than the most similar one does, to count at all."""
NEARNESS = tuple(exp(-bits / FADING) for bits in range(WINDOW + 1))
"""What a prediction weighs, by bits by which its state differs more than the most similar one."""


class Seen(NamedTuple):
    """A prediction, and the target's states before and behind the token that it follows."""

    before: int
    behind: int
    row: Prediction


class Similar(NamedTuple):
    """Predictions in the states most like another one, with their shares of 1, and what state a
    target was in behind the token where it was most like it before."""

    rows: list[Prediction]
    shares: list[float]
    behind: int


class StateMemory:
    """Under each token the newest predictions behind it."""

    MOST = 64
    """Predictions of a token."""
    NEAREST = 8
    """Predictions that are recalled."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[Seen]] = {}

    def store(self, token: int, seen: Seen) -> None:
        """One more, in place of the oldest where there are too many."""
        kept = self._seen.get(token)
        if kept is None:
            kept = self._seen[token] = deque(maxlen=self.MOST)
        kept.appendleft(seen)

    def behind(self, token: int) -> Iterable[Seen]:
        """What was stored under a token, the newest first."""
        return self._seen.get(token, ())

    @classmethod
    def similar(cls, seen: Iterable[Seen], before: int) -> Similar | None:
        """Those most like what is looked for, of which the state before the token is known."""
        found = [((each.before ^ before).bit_count(), each) for each in seen]
        if not found:
            return None
        least, nearest = min(found, key=lambda pair: pair[0])
        near = [(bits - least, each.row) for bits, each in found if bits - least <= WINDOW]
        near = near[: cls.NEAREST]
        total = reduce(add, (NEARNESS[bits] for bits, _ in near), 0.0)
        shares = [NEARNESS[bits] / total for bits, _ in near]
        return Similar([row for _, row in near], shares, nearest.behind)
