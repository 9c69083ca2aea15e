"""Tables of transitions for tests: written by hand, or drawn by hypothesis."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from engine.memory.table import (
    NO_NEXT,
    PAIR,
    PHRASE_K,
    TOKEN_BITS,
    TRIPLE,
    PhraseTable,
    Tables,
    TransitionTable,
)

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


def phrase_key(*tokens: int) -> int:
    """The key of two or three tokens."""
    key = {2: PAIR, 3: TRIPLE}[len(tokens)]
    return key + sum(token << i * TOKEN_BITS for i, token in enumerate(reversed(tokens)))


def phrases(rows: Mapping[Any, int], stamp: int = 1, run: int = 1) -> PhraseTable:
    """A table of `(token, token): next id`, or with three tokens; the next token is certain."""
    next_of = {phrase_key(*tokens): token for tokens, token in rows.items()}
    keys = sorted(next_of)
    none = PHRASE_K - 1
    return PhraseTable(
        keys=np.array(keys, np.uint64),
        next_ids=np.array([[next_of[key], *[NO_NEXT] * none] for key in keys], np.int32),
        probs=np.array([[1.0, *[0.0] * none]] * len(keys), np.float32),
        stamps=np.full(len(keys), stamp, np.uint32),
        runs=np.full(len(keys), run, np.uint8),
    )


Row = tuple[list[int], list[float], int]


def rows_of(table: TransitionTable | PhraseTable) -> dict[int, Row]:
    """`key: (next ids, probabilities, uses or stamp)`, to compare tables by."""
    numbers = table.uses if isinstance(table, TransitionTable) else table.stamps
    columns = (table.keys, table.next_ids, table.probs, numbers)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {key: (next_ids, probs, number) for key, next_ids, probs, number in rows}


def runs_of(table: PhraseTable) -> dict[int, int]:
    """`key: run`."""
    return dict(zip(table.keys.tolist(), table.runs.tolist(), strict=True))


def no_phrases(tokens: TransitionTable) -> Tables:
    """A table of one-token keys alone."""
    return Tables(tokens, PhraseTable.empty(PHRASE_K))


def write_version_1(path: Path, tokenizer: str) -> dict[int, Row]:
    """Write a file as the first version of the format has it; what `rows_of` gives of it."""
    _write_old(path, tokenizer, _VERSION_1, {"format_version": 1})
    return {3: ([5, 6], [1.0, 0.5], 1), 70_000: ([7, NO_NEXT], [0.25, 0.0], 9)}


def write_version_2(path: Path, tokenizer: str) -> dict[int, Row]:
    """Write a file as the second version has it; what `rows_of` gives of its phrases."""
    columns: dict[str, NDArray[Any]] = {
        "phrase_keys": np.array([phrase_key(1, 2)], np.uint64),
        "phrase_next_ids": np.array([[3, 0, 0, 0]], np.uint16),
        "phrase_probs": np.array([[255, 0, 0, 0]], np.uint8),
        "phrase_stamps": np.array([7], np.uint16),
    }
    _write_old(path, tokenizer, _VERSION_1 | columns, {"format_version": 2, "phrases": 1})
    return {phrase_key(1, 2): ([3, *[NO_NEXT] * 3], [1.0, 0.0, 0.0, 0.0], 7)}


_VERSION_1: dict[str, NDArray[Any]] = {
    "keys": np.array([3, 70_000], np.uint32),
    "next_ids": np.array([[5, 6], [7, 0]], np.uint16),
    "probs": np.array([[255, 239], [223, 0]], np.uint8),
    "uses": np.array([1, 9], np.uint16),
}


def _write_old(
    path: Path, tokenizer: str, columns: dict[str, NDArray[Any]], fields: dict[str, int]
) -> None:
    header = {
        **fields,
        "tokenizer": tokenizer,
        "models": ["old"],
        "k": 2,
        "keys": 2,
        "first_used": "2026-01-02T03:04:05+00:00",
        "last_used": "2026-01-02T03:04:05+00:00",
        "requests": 5,
        "checksum": zlib.crc32(b"".join(column.tobytes() for column in columns.values())),
    }
    save_file(columns, path, {"recap_memory": orjson.dumps(header).decode()})


@st.composite
def tables(draw: st.DrawFn, k: int | None = None, max_id: int = 2**31 - 1) -> TransitionTable:
    """Any valid table, of up to a dozen rows; its rows may have fewer than k next tokens."""
    k = draw(st.integers(1, 9)) if k is None else k
    ids = st.integers(0, draw(st.sampled_from([min(99, max_id), max_id])))
    keys = sorted(draw(st.sets(ids, max_size=12)))
    return TransitionTable(np.array(keys, np.int32), *draw(_columns(len(keys), k, ids)))


@st.composite
def phrase_tables(
    draw: st.DrawFn, k: int = PHRASE_K, max_id: int = 2**TOKEN_BITS - 1
) -> PhraseTable:
    """Any valid table of phrases, of up to a dozen rows."""
    ids = st.integers(0, max_id)
    phrase = st.lists(ids, min_size=2, max_size=3).map(lambda tokens: phrase_key(*tokens))
    keys = sorted(draw(st.sets(phrase, max_size=12)))
    runs = draw(st.lists(st.integers(1, 255), min_size=len(keys), max_size=len(keys)))
    columns = draw(_columns(len(keys), k, ids))
    return PhraseTable(np.array(keys, np.uint64), *columns, np.array(runs, np.uint8))


@st.composite
def _columns(draw: st.DrawFn, n: int, k: int, ids: st.SearchStrategy[int]) -> tuple[Any, Any, Any]:
    """Next ids, probabilities, and uses or stamps of n rows."""
    probability = st.floats(0, 1, width=32)
    next_ids = np.full((n, k), NO_NEXT, np.int32)
    probs = np.zeros((n, k), np.float32)
    for row in range(n):
        known = draw(st.integers(0, k))
        next_ids[row, :known] = draw(st.lists(ids, min_size=known, max_size=known))
        drawn = draw(st.lists(probability, min_size=known, max_size=known))
        probs[row, :known] = sorted(drawn, reverse=True)
    numbers = draw(st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n))
    return next_ids, probs, np.array(numbers, np.uint32)
