"""Transitions under one-token keys as plain arrays: what a token memory's file holds.

This is the boundary between the memories in RAM and the file; it knows neither.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

NO_NEXT = -1  # fills a row of `next_ids` that has fewer than k


@dataclass(frozen=True, slots=True, eq=False)
class TransitionTable:
    """n transitions, one a key.

    Attributes:
        keys: int32 [n], strictly increasing token ids.
        next_ids: int32 [n, k], the target's likeliest next tokens, most probable first;
            `NO_NEXT` (-1), with probability 0, fills a row that has fewer than k.
        probs: float32 [n, k], their softmax probabilities, never increasing along a row.
        uses: uint32 [n], how often passes wrote this key.

    Raises:
        ValueError: the arrays are not as described.
    """

    keys: NDArray[np.int32]
    next_ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    uses: NDArray[np.uint32]

    def __post_init__(self) -> None:
        n = len(self.keys)
        if self.next_ids.ndim != 2 or self.next_ids.shape[1] < 1:
            raise ValueError("next_ids must be [n, k] with k of at least 1")
        wanted = {
            "keys": (np.int32, (n,)),
            "next_ids": (np.int32, (n, self.k)),
            "probs": (np.float32, (n, self.k)),
            "uses": (np.uint32, (n,)),
        }
        for name, (dtype, shape) in wanted.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{name} must be {np.dtype(dtype)} {list(shape)}")
        if n:
            self._check_values()

    def _check_values(self) -> None:
        if self.keys[0] < 0 or (self.keys[1:] <= self.keys[:-1]).any():
            raise ValueError("keys must be token ids, strictly increasing")
        if self.next_ids.min() < NO_NEXT:
            raise ValueError("next_ids must be token ids, or -1 for none")
        # Written so that NaN fails; a softmax may exceed 1 by a rounding error.
        if not (self.probs[:, -1].min() >= 0 and self.probs[:, 0].max() <= 1.001):
            raise ValueError("probs must be from 0 to 1")
        if not (self.probs[:, 1:] <= self.probs[:, :-1]).all():
            raise ValueError("probs must not increase along a row")
        if self.probs[self.next_ids == NO_NEXT].any():
            raise ValueError("probs must be 0 where there is no token")

    @classmethod
    def empty(cls, k: int) -> Self:
        """A table without rows, of k columns."""
        return cls(
            keys=np.empty(0, np.int32),
            next_ids=np.empty((0, k), np.int32),
            probs=np.empty((0, k), np.float32),
            uses=np.empty(0, np.uint32),
        )

    @property
    def k(self) -> int:
        """Next tokens a row has room for."""
        return int(self.next_ids.shape[1])

    def with_k(self, k: int) -> "TransitionTable":
        """The same rows with k columns: the least probable go, or `NO_NEXT` fills up."""
        if k == self.k:
            return self
        kept = min(k, self.k)
        next_ids = np.full((len(self.keys), k), NO_NEXT, np.int32)
        probs = np.zeros((len(self.keys), k), np.float32)
        next_ids[:, :kept] = self.next_ids[:, :kept]
        probs[:, :kept] = self.probs[:, :kept]
        return TransitionTable(self.keys, next_ids, probs, self.uses)

    def below(self, vocab_size: int) -> "TransitionTable":
        """The rows that name only ids below `vocab_size`.

        Models that share a tokenizer may pad their vocabularies to different sizes, and an id that
        a model has no embedding for must never reach it.
        """
        known = (self.keys < vocab_size) & (self.next_ids < vocab_size).all(axis=1)
        if known.all():
            return self
        return TransitionTable(
            self.keys[known], self.next_ids[known], self.probs[known], self.uses[known]
        )

    def merged_with(self, newer: "TransitionTable") -> "TransitionTable":
        """Both tables' rows with `newer.k` columns: of a key in both, the newer row, uses added."""
        older = self.with_k(newer.k)
        keys = np.union1d(older.keys, newer.keys)
        at_older = np.searchsorted(keys, older.keys)
        at_newer = np.searchsorted(keys, newer.keys)
        next_ids = np.empty((len(keys), newer.k), np.int32)
        probs = np.empty((len(keys), newer.k), np.float32)
        next_ids[at_older], next_ids[at_newer] = older.next_ids, newer.next_ids
        probs[at_older], probs[at_newer] = older.probs, newer.probs
        uses = np.zeros(len(keys), np.uint32)
        uses[at_older] = older.uses
        room = np.iinfo(np.uint32).max - uses[at_newer]
        uses[at_newer] += np.minimum(newer.uses, room)
        return TransitionTable(keys, next_ids, probs, uses)
