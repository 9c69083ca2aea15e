"""The memories in RAM: what the target predicted after a key of one, two or three tokens.

A *context* packs the last three token ids into one integer, so that all three keys of a tree node
come from it by masking and a child's context by shifting. Knows no model, no file, no tensor.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import log

import numpy as np
from numpy.typing import NDArray

from engine.memory.table import (
    LONGEST_RUN,
    NO_NEXT,
    PAIR,
    PHRASE_K,
    PHRASES_MOST,
    TOKEN_BITS,
    TRIPLE,
    PhraseTable,
    Tables,
    TransitionTable,
)

ONE = (1 << TOKEN_BITS) - 1
TWO = (1 << 2 * TOKEN_BITS) - 1
THREE = (1 << 3 * TOKEN_BITS) - 1
NO_TOKEN = ONE
"""Stands in a context where there is no token to key by: before the text and at placeholders."""
NO_CONTEXT = THREE


@dataclass(slots=True)
class Prediction:
    """The target's top-k next tokens after some context.

    `ids` and `probs` are parallel, most probable first. A confidence that is not given is computed
    when it is first asked for, which of most predictions it never is.

    Attributes:
        by_guess: whether the context was a guess of this run that did not come true.
    """

    ids: Sequence[int]
    probs: Sequence[float]
    _confidence: float | None = field(default=None, compare=False)
    by_guess: bool = field(default=False, compare=False)

    @property
    def confidence(self) -> float:
        """1 - entropy / log k of the probabilities normalised to one: 1 is certain, 0 is uniform
        or that nothing is known."""
        if self._confidence is None:
            self._confidence = _confidence(self.probs)
        return self._confidence


def _confidence(probs: Sequence[float]) -> float:
    # -sum(s log s) of shares s = p / total is log(total) - sum(p log p) / total.
    total, sum_p_log_p = 0.0, 0.0
    for p in probs:
        if p > 0:
            total += p
            sum_p_log_p += p * log(p)
    if not total:
        return 0.0
    most = log(max(len(probs), 2))  # a file's rows may have a single column
    return min(max(1 - (log(total) - sum_p_log_p / total) / most, 0.0), 1.0)


def added(
    rows: Sequence[Prediction], shares: Sequence[float], least: float = 0.0
) -> dict[int, float]:
    """Probabilities of tokens under several predictions, each with its share, in no order.

    Args:
        least: what a prediction gives less probability is left out.
    """
    total: dict[int, float] = {}
    before = total.get
    for row, share in zip(rows, shares, strict=True):
        for token, probability in zip(row.ids, row.probs, strict=True):
            if probability < least:
                break
            total[token] = before(token, 0.0) + share * probability
    return total


def likeliest(probs: Mapping[int, float], k: int) -> Prediction:
    """The k most probable tokens, or fewer, as a prediction."""
    ids = sorted(probs, key=probs.__getitem__, reverse=True)[:k]
    return Prediction(ids, [probs[token] for token in ids])


def predictions_of(ids: NDArray[np.integer], probs: NDArray[np.float32]) -> list[Prediction]:
    """One `Prediction` a row of [n, k] ids and probabilities."""
    return list(map(Prediction, ids.tolist(), probs.tolist()))


Kept = tuple[Prediction, int]
"""The newest prediction under a longer key, and its *run*: how many in a row, this one included,
had the same first choice. The longer, the surer is what it foresees."""


def kept(row: Prediction, before: Kept | None) -> Kept:
    """What a key holds after a new prediction; `before` is what it held."""
    if before is not None and before[0].ids[0] == row.ids[0]:
        return row, before[1] + 1
    return row, 1


class ContextualMemory:
    """Predictions under two- and three-token keys; lives for one request, or one conversation."""

    def __init__(self) -> None:
        self.pairs: dict[int, Kept] = {}
        self.triples: dict[int, Kept] = {}


class PhraseMemory:
    """Predictions under two- and three-token keys of earlier requests, for want of this one's.

    What was stored longest ago is forgotten first. Rows of the file stay arrays until a key is
    first looked up, and keys of the file always: a dict of them would take longer to make than
    many a short answer.
    """

    MOST = PHRASES_MOST
    UNPACKED = 16
    """Rows of the file that are unpacked together; one alone takes nearly as long."""

    def __init__(self, table: PhraseTable | None = None) -> None:
        self._rows: dict[int, Kept] = {}
        self._written: dict[int, int] = {}
        self._absorbed = 0
        self.table = PhraseTable.empty(PHRASE_K) if table is None else table
        self._unpacked: dict[int, Kept] = {}

    def __len__(self) -> int:
        return len(self._rows.keys() | self.table.keys.tolist())

    def recall(self, key: int) -> Kept | None:
        """What is kept under a context of two tokens with PAIR, or of three with TRIPLE."""
        found = self._rows.get(key)
        return self._recall_from_file(key) if found is None else found

    def absorb(self, memory: ContextualMemory) -> None:
        """Take over what a request has learned so far."""
        rows = self._rows
        self._absorbed += 1
        for mark, learned in ((PAIR, memory.pairs), (TRIPLE, memory.triples)):
            for context, newest in learned.items():
                key = mark | context
                if rows.get(key) is not newest:
                    rows.pop(key, None)  # so that it counts as the newest
                    rows[key] = newest
                    self._written[key] = self._absorbed
        for key in list(islice(rows, max(len(rows) - self.MOST, 0))):
            del rows[key]
            self._written.pop(key, None)

    def written(self) -> PhraseTable | None:
        """The rows that were absorbed since the last save; None when there are none."""
        if not self._written:
            return None
        keys = sorted(self._written)
        rows = [self._rows[key] for key in keys]
        return PhraseTable(
            keys=np.array(keys, np.uint64),
            next_ids=np.array([row.ids[:PHRASE_K] for row, _ in rows], np.int32),
            probs=np.array([row.probs[:PHRASE_K] for row, _ in rows], np.float32),
            stamps=np.array([self._written[key] for key in keys], np.uint32),
            runs=np.array([min(run, LONGEST_RUN) for _, run in rows], np.uint8),
        )

    def mark_saved(self) -> None:
        """Nothing that is in here now needs to be written again."""
        self._written.clear()

    def _recall_from_file(self, key: int) -> Kept | None:
        if key in self._unpacked:
            return self._unpacked[key]
        keys = self.table.keys.data
        row = bisect_left(keys, key)
        if row == len(keys) or keys[row] != key:
            return None
        # Neighbours begin with the same tokens: they are likely to be asked for soon.
        part = slice(row - row % self.UNPACKED, row - row % self.UNPACKED + self.UNPACKED)
        found = predictions_of(self.table.next_ids[part], self.table.probs[part])
        rows = zip(found, self.table.runs[part].tolist(), strict=True)
        self._unpacked.update(zip(keys[part].tolist(), rows, strict=True))
        return self._unpacked[key]


Recent = tuple[Prediction] | tuple[Prediction, Prediction]
"""Predictions after one token, the newest first."""


def _mixed(recent: Recent) -> Prediction:
    """All in equal parts; of their tokens the likeliest, as many as the newest one has.

    Where ids were repeated there may be fewer; then `NO_NEXT` fills up.
    """
    if len(recent) == 1:
        return recent[0]
    k = len(recent[0].ids)
    mixed = likeliest(added(recent, (0.5, 0.5)), k)
    missing = k - len(mixed.ids)
    return Prediction([*mixed.ids, *[NO_NEXT] * missing], [*mixed.probs, *[0.0] * missing])


def token_table(rows: Mapping[int, Recent], uses: Mapping[int, int]) -> TransitionTable:
    """What a file keeps of tokens that were used so often, one at least."""
    keys = sorted(uses)
    mixed = [_mixed(rows[key]) for key in keys]
    return TransitionTable(
        keys=np.array(keys, np.int32),
        next_ids=np.array([row.ids for row in mixed], np.int32),
        probs=np.array([row.probs for row in mixed], np.float32),
        uses=np.array([uses[key] for key in keys], np.uint32),
    )


class TokenMemory:
    """Predictions under one-token keys, of each the newest and the one before; outlives requests.

    What comes next depends on more than one token: what it was before counts, too. A file, in which
    it outlives runs, keeps a mixture of both. Its rows stay arrays until a key is first looked up.

    Attributes:
        phrases: what outlives requests of predictions under longer keys.
    """

    def __init__(
        self, table: TransitionTable | None = None, phrases: PhraseTable | None = None
    ) -> None:
        self.phrases = PhraseMemory(phrases)
        self._rows: dict[int, Recent] = {}
        self._written: dict[int, int] = {}
        self._table = table

    @cached_property
    def _row_of(self) -> dict[int, int]:
        """Where keys of the file are in its table; made when Python first looks one up."""
        keys = [] if self._table is None else self._table.keys.tolist()
        return {key: row for row, key in enumerate(keys)}

    def __len__(self) -> int:
        return len(self._row_of.keys() | self._rows.keys())

    @property
    def tables(self) -> Tables:
        """What came from a file."""
        tokens = TransitionTable.empty(1) if self._table is None else self._table
        return Tables(tokens, self.phrases.table)

    def recall(self, token: int) -> Prediction | None:
        """The newest prediction after a token."""
        found = self.recent(token)
        return found[0] if found else None

    def recent(self, token: int) -> "Recent | None":
        """The newest prediction after a token and, where there was one, that before."""
        found = self._rows.get(token)
        if found is not None or self._table is None:
            return found
        row = self._row_of.get(token)
        if row is None:
            return None
        part = slice(row, row + 1)
        found = (predictions_of(self._table.next_ids[part], self._table.probs[part])[0],)
        self._rows[token] = found
        return found

    def store(self, token: int, row: Prediction) -> None:
        """Make this the newest prediction after a token."""
        before = self.recent(token)
        self._rows[token] = (row,) if before is None else (row, before[0])
        self._written[token] = self._written.get(token, 0) + 1

    @property
    def changed(self) -> bool:
        """Whether rows were written that are not saved."""
        return bool(self._written)

    def written(self) -> TransitionTable | None:
        """The rows that were written since the last save; None when there are none."""
        return token_table(self._rows, self._written) if self._written else None

    def news(self) -> Tables | None:
        """All that was written since the last save, phrases, too; None when there is nothing."""
        tokens, phrases = self.written(), self.phrases.written()
        if tokens is None and phrases is None:
            return None
        return Tables(
            TransitionTable.empty(1) if tokens is None else tokens,
            PhraseTable.empty(PHRASE_K) if phrases is None else phrases,
        )

    def mark_saved(self) -> None:
        """Nothing that is in here now needs to be written again."""
        self._written.clear()
        self.phrases.mark_saved()
