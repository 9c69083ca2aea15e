"""Transitions as plain arrays, one row a key: what a token memory's file holds.

`TransitionTable` has one-token keys, `PhraseTable` two- and three-token keys, `Tables` one of each.
This is the boundary between the memories in RAM and the file; it knows neither.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

NO_NEXT = -1  # fills a row of `next_ids` that has fewer than k
TOKEN_BITS = 20
"""Bits a token id takes in a key of several; the largest vocabularies have 18."""
PAIR = 1 << 3 * TOKEN_BITS
"""The tag of a two-token key; its tokens are in the bits below, the last one lowest."""
TRIPLE = PAIR << 1
"""The tag of a three-token key."""
PHRASE_K = 4
"""Next tokens that are kept after a two- or three-token key."""
LONGEST_RUN = 255
"""The longest run that is kept of a two- or three-token key; it means "at least"."""
PHRASES_MOST = 200_000
"""Two- and three-token keys that are kept; the oldest go."""

_COMMON = {"next_ids": np.int32, "probs": np.float32}


@dataclass(frozen=True, slots=True, eq=False)
class _Rows(ABC):
    """n transitions, one a key; a subclass says what a key is, and what else a row has.

    Attributes:
        keys: [n], strictly increasing.
        next_ids: int32 [n, k], the target's likeliest next tokens, most probable first;
            `NO_NEXT` (-1), with probability 0, fills a row that has fewer than k.
        probs: float32 [n, k], their softmax probabilities, never increasing along a row.

    Raises:
        ValueError: the arrays are not as described.
    """

    keys: NDArray[Any]
    next_ids: NDArray[np.int32]
    probs: NDArray[np.float32]

    DTYPES: ClassVar[Mapping[str, Any]]
    """Of every column; those of `_COMMON` are [n, k], the others [n]."""

    def __post_init__(self) -> None:
        if self.next_ids.ndim != 2 or self.next_ids.shape[1] < 1:
            raise ValueError("next_ids must be [n, k] with k of at least 1")
        n = len(self.keys)
        for name, dtype in self.DTYPES.items():
            array = getattr(self, name)
            shape = (n, self.k) if name in _COMMON else (n,)
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{name} must be {np.dtype(dtype)} {list(shape)}")
        if n:
            self._check_values()

    def _check_values(self) -> None:
        if (self.keys[1:] <= self.keys[:-1]).any() or not self._keys_fit():
            raise ValueError("keys must be of token ids, strictly increasing")
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
        shapes = {name: (0, k) if name in _COMMON else (0,) for name in cls.DTYPES}
        return cls(**{name: np.empty(shapes[name], dtype) for name, dtype in cls.DTYPES.items()})

    @property
    def k(self) -> int:
        """Next tokens a row has room for."""
        return int(self.next_ids.shape[1])

    def with_k(self, k: int) -> Self:
        """The same rows with k columns: the least probable go, or `NO_NEXT` fills up."""
        if k == self.k:
            return self
        kept = min(k, self.k)
        next_ids = np.full((len(self.keys), k), NO_NEXT, np.int32)
        probs = np.zeros((len(self.keys), k), np.float32)
        next_ids[:, :kept] = self.next_ids[:, :kept]
        probs[:, :kept] = self.probs[:, :kept]
        return replace(self, next_ids=next_ids, probs=probs)

    def below(self, vocab_size: int) -> Self:
        """The rows that name only ids below `vocab_size`.

        Models that share a tokenizer may pad their vocabularies to different sizes, and an id that
        a model has no embedding for must never reach it.
        """
        known = self._keys_below(vocab_size)
        if self.next_ids.max(initial=0) >= vocab_size:
            known = known & (self.next_ids < vocab_size).all(axis=1)
        return self if known.all() else self._only(known)

    def merged_with(self, newer: Self) -> Self:
        """Both tables' rows with `newer.k` columns: of a key in both, the newer row.

        A newer table without rows changes nothing.
        """
        if not len(newer.keys):
            return self
        both = (newer._following(self), self.with_k(newer.k))
        columns = {name: np.concatenate([getattr(t, name) for t in both]) for name in self.DTYPES}
        _, first = np.unique(columns["keys"], return_index=True)
        return type(self)(**{name: column[first] for name, column in columns.items()})

    def _only(self, rows: NDArray[Any]) -> Self:
        return type(self)(**{name: getattr(self, name)[rows] for name in self.DTYPES})

    @abstractmethod
    def _keys_fit(self) -> bool:
        """Whether the keys, one at least and increasing, are of token ids."""

    @abstractmethod
    def _keys_below(self, vocab_size: int) -> NDArray[np.bool_]:
        """Of which rows all tokens of the key are below `vocab_size`; [n]."""

    @abstractmethod
    def _following(self, older: Self) -> Self:
        """These rows, one at least, as they are where those of `older` were written before."""


@dataclass(frozen=True, slots=True, eq=False)
class TransitionTable(_Rows):
    """Transitions under one-token keys.

    Attributes:
        keys: int32 [n], strictly increasing token ids.
        uses: uint32 [n], how often passes wrote this key; merging adds them.
    """

    keys: NDArray[np.int32]
    uses: NDArray[np.uint32]

    DTYPES: ClassVar = {"keys": np.int32, **_COMMON, "uses": np.uint32}

    def _keys_fit(self) -> bool:
        return bool(self.keys[0] >= 0)

    def _keys_below(self, vocab_size: int) -> NDArray[np.bool_]:
        return self.keys < vocab_size

    def _following(self, older: Self) -> Self:
        _, here, there = np.intersect1d(
            self.keys, older.keys, assume_unique=True, return_indices=True
        )
        uses = self.uses.copy()
        room = np.iinfo(np.uint32).max - uses[here]
        uses[here] += np.minimum(older.uses[there], room)
        return replace(self, uses=uses)


@dataclass(frozen=True, slots=True, eq=False)
class PhraseTable(_Rows):
    """Transitions under two- and three-token keys.

    Attributes:
        keys: uint64 [n], strictly increasing: token ids of `TOKEN_BITS` each, the last one lowest,
            below a tag, `PAIR` or `TRIPLE`. So all two-token keys come first.
        stamps: uint32 [n], greater where a row was written later; merging makes those of the newer
            table greater than the older's.
        runs: uint8 [n], how many predictions in a row, this one included, had the same first
            choice.
    """

    keys: NDArray[np.uint64]
    stamps: NDArray[np.uint32]
    runs: NDArray[np.uint8]

    DTYPES: ClassVar = {"keys": np.uint64, **_COMMON, "stamps": np.uint32, "runs": np.uint8}

    @property
    def pairs(self) -> int:
        """How many keys are of two tokens; the others are of three."""
        return int(np.searchsorted(self.keys, np.uint64(TRIPLE)))

    def newest(self, most: int) -> Self:
        """The `most` rows that were written last."""
        if len(self.keys) <= most:
            return self
        latest = np.argsort(self.stamps, kind="stable")[len(self.keys) - most :]
        return self._only(np.sort(latest))

    def _keys_fit(self) -> bool:
        tagged = ((self.keys[: self.pairs], PAIR, 2), (self.keys[self.pairs :], TRIPLE, 3))
        return all(
            tag <= int(keys[0]) and int(keys[-1]) < tag + (1 << tokens * TOKEN_BITS)
            for keys, tag, tokens in tagged
            if len(keys)
        )

    def _keys_below(self, vocab_size: int) -> NDArray[np.bool_]:
        shifts = (0, TOKEN_BITS, 2 * TOKEN_BITS)  # a two-token key has zeros for the third
        mask = np.uint64((1 << TOKEN_BITS) - 1)
        greatest: NDArray[np.uint64] = np.maximum.reduce(
            [self.keys >> np.uint64(shift) & mask for shift in shifts]
        )
        return greatest < vocab_size

    def _following(self, older: Self) -> Self:
        later = int(older.stamps.max(initial=0)) + 1 - int(self.stamps.min())
        stamps = np.minimum(self.stamps.astype(np.int64) + later, np.iinfo(np.uint32).max)
        return replace(self, stamps=stamps.astype(np.uint32))


class Tables(NamedTuple):
    """Everything that a token memory's file holds beside its header."""

    tokens: TransitionTable
    phrases: PhraseTable

    @classmethod
    def empty(cls, k: int) -> Self:
        """Tables without rows; k is that of the tokens."""
        return cls(TransitionTable.empty(k), PhraseTable.empty(PHRASE_K))

    def below(self, vocab_size: int) -> "Tables":
        """The rows that name only ids below `vocab_size`."""
        return Tables(self.tokens.below(vocab_size), self.phrases.below(vocab_size))

    def merged_with(self, newer: "Tables") -> "Tables":
        """Both tables' rows, of a key in both the newer one; of phrases what is kept of them."""
        phrases = self.phrases.merged_with(newer.phrases.with_k(PHRASE_K))
        return Tables(self.tokens.merged_with(newer.tokens), phrases.newest(PHRASES_MOST))
