"""What the target predicted in which of its states; never in a memory's file.

Under each token are the predictions behind it, with the state before the token, in which it was
chosen, and the state behind it, in which the prediction was made. A prediction in a similar state
foresees better than a newer one does: the state knows the text and the pictures before the token.
"""

from collections import deque
from collections.abc import Iterable
from functools import reduce
from itertools import chain
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


class Similar(NamedTuple):
    """Predictions in the states most like another one, with their shares of 1, and what state a
    target was in behind the token where it was most like it before."""

    rows: list[Prediction]
    shares: list[float]
    behind: int


class _Kept:
    """Of one token, the newest first: states before it, and what was behind it in these."""

    def __init__(self, most: int) -> None:
        self.before: deque[int] = deque(maxlen=most)
        self.behind: deque[tuple[int, Prediction]] = deque(maxlen=most)
        self.request = 0  # that stored the newest


class StateMemory:
    """Under each token the newest predictions behind it."""

    MOST = 64
    """Predictions of a token."""
    LIMIT = 1 << 18
    """Predictions of all tokens, as a request begins: some 40 MB in C++, 200 in Python."""
    NEAREST = 8
    """Predictions that are recalled."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._count = 0
        self._request = 0

    def begin(self) -> None:
        """Another request. Where there are too many predictions, those of tokens go to which none
        was added for longest, until there are an eighth less."""
        self._request += 1
        if self._count > self.LIMIT:
            for token in sorted(self._kept, key=lambda token: (self._kept[token].request, token)):
                if self._count <= self.LIMIT - self.LIMIT // 8:
                    break
                self._count -= len(self._kept.pop(token).before)

    def store(self, token: int, before: int, behind: int, row: Prediction) -> None:
        """One more prediction, with the target's states before and behind the token that it
        follows; in place of the oldest where there are too many."""
        kept = self._kept.get(token)
        if kept is None:
            kept = self._kept[token] = _Kept(self.MOST)
        kept.request = self._request
        self._count += len(kept.before) < self.MOST
        kept.before.appendleft(before)
        kept.behind.appendleft((behind, row))

    @classmethod
    def similar(cls, memories: Iterable["StateMemory"], token: int, before: int) -> Similar | None:
        """Predictions behind a token in states most like the one before it; None if it is unknown.

        Those of the first memory go first.
        """
        all_kept = [memory._kept[token] for memory in memories if token in memory._kept]
        if not all_kept:
            return None
        states = chain.from_iterable(kept.before for kept in all_kept)
        bits = [*map(int.bit_count, map(before.__xor__, states))]
        least = min(bits)
        farthest = least + WINDOW
        near = [at for at, more in enumerate(bits) if more <= farthest]
        if len(near) > cls.NEAREST:
            near = sorted(near, key=bits.__getitem__)[: cls.NEAREST]
        behind = [*chain.from_iterable(kept.behind for kept in all_kept)]
        nearness = [NEARNESS[bits[at] - least] for at in near]
        total = reduce(add, nearness)
        shares = [each / total for each in nearness]
        return Similar([behind[at][1] for at in near], shares, behind[bits.index(least)][0])
