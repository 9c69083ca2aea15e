"""Transition tables for tests: written by hand, or drawn by hypothesis."""

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from engine.memory.table import NO_NEXT, TransitionTable

Rows = Mapping[int, Sequence[tuple[int, float]]]


def table(rows: Rows, uses: int = 1) -> TransitionTable:
    """A table of `key: [(next id, probability), ...]`, all rows of the same length."""
    keys = sorted(rows)
    pairs = np.array([rows[key] for key in keys], np.float64)
    return TransitionTable(
        keys=np.array(keys, np.int32),
        next_ids=pairs[:, :, 0].astype(np.int32),
        probs=pairs[:, :, 1].astype(np.float32),
        uses=np.full(len(keys), uses, np.uint32),
    )


def rows_of(table: TransitionTable) -> dict[int, tuple[list[int], list[float], int]]:
    """`key: (next ids, probabilities, uses)`, to compare tables by."""
    columns = (table.keys, table.next_ids, table.probs, table.uses)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {key: (next_ids, probs, uses) for key, next_ids, probs, uses in rows}


@st.composite
def tables(draw: st.DrawFn, k: int | None = None, max_id: int = 2**31 - 1) -> TransitionTable:
    """Any valid table, of up to a dozen rows; its rows may have fewer than k next tokens."""
    k = draw(st.integers(1, 9)) if k is None else k
    ids = st.integers(0, draw(st.sampled_from([min(99, max_id), max_id])))
    keys = sorted(draw(st.sets(ids, max_size=12)))
    probability = st.floats(0, 1, width=32)
    next_ids = np.full((len(keys), k), NO_NEXT, np.int32)
    probs = np.zeros((len(keys), k), np.float32)
    for row in range(len(keys)):
        known = draw(st.integers(0, k))
        next_ids[row, :known] = draw(st.lists(ids, min_size=known, max_size=known))
        drawn = draw(st.lists(probability, min_size=known, max_size=known))
        probs[row, :known] = sorted(drawn, reverse=True)
    uses = draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(keys), max_size=len(keys)))
    return TransitionTable(np.array(keys, np.int32), next_ids, probs, np.array(uses, np.uint32))
