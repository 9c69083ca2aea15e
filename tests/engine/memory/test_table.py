from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory import table as table_module
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
from tests.engine.memory.tables import (
    no_phrases,
    phrase_key,
    phrase_tables,
    phrases,
    rows_of,
    table,
    tables,
)


@settings(deadline=None)
@given(st.data())
def test_merging_is_a_dict_update_that_adds_uses(data: st.DataObject) -> None:
    older = data.draw(tables(k=3, max_id=20))
    newer = data.draw(tables(k=3, max_id=20))
    expected = rows_of(older)
    for key, (ids, probs, uses) in rows_of(newer).items():
        before = expected[key][2] if key in expected else 0
        expected[key] = (ids, probs, min(before + uses, 2**32 - 1))

    assert rows_of(older.merged_with(newer)) == expected


def test_merging_takes_the_newer_tables_number_of_columns() -> None:
    wide = table({1: [(5, 0.5), (6, 0.25), (7, 0.125)]})
    narrow = table({2: [(8, 0.75), (9, 0.25)]})

    assert rows_of(wide.merged_with(narrow)) == {
        1: ([5, 6], [0.5, 0.25], 1),
        2: ([8, 9], [0.75, 0.25], 1),
    }
    assert rows_of(narrow.merged_with(wide)) == {
        1: ([5, 6, 7], [0.5, 0.25, 0.125], 1),
        2: ([8, 9, NO_NEXT], [0.75, 0.25, 0.0], 1),
    }


def test_merging_an_empty_table_changes_nothing() -> None:
    wide = table({1: [(5, 0.5), (6, 0.25), (7, 0.125)]})
    assert wide.merged_with(TransitionTable.empty(1)) is wide


def test_rows_with_ids_that_a_smaller_vocabulary_lacks_are_left_out() -> None:
    rows = table({1: [(5, 0.5), (6, 0.25)], 2: [(7, 0.5), (100, 0.25)], 100: [(1, 0.5), (2, 0.5)]})

    assert rows_of(rows.below(100)).keys() == {1}
    assert rows.below(101) is rows


GOOD = table({1: [(5, 0.5), (6, 0.25)], 2: [(7, 0.5), (NO_NEXT, 0.0)]})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"keys": np.array([2, 1], np.int32)}, id="keys fall"),
        pytest.param({"keys": np.array([1, 1], np.int32)}, id="a key twice"),
        pytest.param({"keys": np.array([-1, 1], np.int32)}, id="a negative key"),
        pytest.param({"keys": np.array([1, 2], np.int64)}, id="wrong dtype"),
        pytest.param({"uses": np.array([1], np.uint32)}, id="wrong length"),
        pytest.param({"next_ids": np.zeros((2, 0), np.int32)}, id="no columns"),
        pytest.param({"next_ids": np.array([5, 6], np.int32)}, id="not two-dimensional"),
        pytest.param({"next_ids": np.array([[5, -2], [7, 8]], np.int32)}, id="a negative id"),
        pytest.param(
            {"probs": np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)}, id="none, yet probable"
        ),
        pytest.param({"probs": np.array([[0.2, 0.3], [0, 0]], np.float32)}, id="probs rise"),
        pytest.param({"probs": np.array([[1.5, 0.3], [0, 0]], np.float32)}, id="above 1"),
        pytest.param({"probs": np.array([[0.5, -0.3], [0, 0]], np.float32)}, id="below 0"),
        pytest.param({"probs": np.array([[0.5, np.nan], [0, 0]], np.float32)}, id="not a number"),
    ],
)
def test_a_table_is_checked_where_it_is_made(change: dict[str, np.ndarray]) -> None:
    columns = {name: getattr(GOOD, name) for name in GOOD.DTYPES}
    with pytest.raises(ValueError, match=next(iter(change)) + " must"):
        TransitionTable(**columns | change)


# Phrases


@settings(deadline=None)
@given(older=phrase_tables(k=3, max_id=3), newer=phrase_tables(k=3, max_id=3))
def test_merging_phrases_is_a_dict_update(older: PhraseTable, newer: PhraseTable) -> None:
    merged = rows_of(older.merged_with(newer))

    expected = rows_of(older) | rows_of(newer)
    assert {key: row[:2] for key, row in merged.items()} == {
        key: row[:2] for key, row in expected.items()
    }


@pytest.mark.parametrize("older", [1, 7, 1000])
@pytest.mark.parametrize("newer", [1, 7, 1000])
def test_what_is_merged_is_newer_whatever_its_stamps_were(older: int, newer: int) -> None:
    first = phrases({(1, 2): 3, (2, 3): 4}, older)
    second = phrases({(2, 3): 5, (1, 2, 3): 4}, newer)

    merged = first.merged_with(second)

    stamps = dict(zip(merged.keys.tolist(), merged.stamps.tolist(), strict=True))
    assert stamps[phrase_key(1, 2)] == older
    assert stamps[phrase_key(2, 3)] == stamps[phrase_key(1, 2, 3)] == older + 1


def test_stamps_end_at_the_greatest_number() -> None:
    last = phrases({(1, 2): 3}, 2**32 - 1)
    assert last.merged_with(phrases({(3, 4): 5})).stamps.tolist() == [2**32 - 1] * 2


def test_the_newest_phrases_are_those_of_the_greatest_stamps() -> None:
    rows = phrases({(1, 2): 3, (2, 3): 4, (3, 4): 5, (1, 2, 3): 4})
    stamped = replace(rows, stamps=np.array([3, 1, 4, 2], np.uint32))

    assert rows_of(stamped.newest(2)).keys() == {phrase_key(1, 2), phrase_key(3, 4)}
    assert stamped.newest(4) is stamped


def test_two_token_keys_are_counted_apart_from_those_of_three() -> None:
    assert phrases({(1, 2): 3, (0, 0): 1, (0, 0, 0): 4}).pairs == 2
    assert PhraseTable.empty(PHRASE_K).pairs == 0


def test_phrases_with_ids_that_a_smaller_vocabulary_lacks_are_left_out() -> None:
    known = {(1, 99): 99, (1, 2, 3): 4}
    unknown = {
        (100, 1): 1,
        (1, 100): 1,
        (1, 1): 100,
        (100, 1, 1): 1,
        (1, 100, 1): 1,
    }

    assert rows_of(phrases(known | unknown).below(100)) == rows_of(phrases(known))


GREATEST = 2**TOKEN_BITS - 1


def test_every_token_id_of_twenty_bits_can_be_in_a_phrase() -> None:
    rows = phrases({(0, 0): 1, (GREATEST, GREATEST): 1, (0, 0, 0): 1, (GREATEST,) * 3: 1})
    assert rows.pairs == 2
    assert rows.below(GREATEST).keys.tolist() == [PAIR, TRIPLE]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([TRIPLE, PAIR], id="keys fall"),
        pytest.param([PAIR, PAIR], id="a key twice"),
        pytest.param([5, TRIPLE], id="no tag"),
        pytest.param([PAIR, TRIPLE | PAIR], id="two tags"),
        pytest.param([PAIR, TRIPLE << 1], id="another tag"),
        pytest.param([PAIR, PAIR | 1 << 2 * TOKEN_BITS], id="a third token in a two-token key"),
    ],
)
def test_keys_of_phrases_are_checked(keys: list[int]) -> None:
    rows = phrases({(1, 2): 3, (1, 2, 3): 4})
    with pytest.raises(ValueError, match="keys must"):
        replace(rows, keys=np.array(keys, np.uint64))


# Both


def test_of_too_many_phrases_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "PHRASES_MOST", 2)
    known = Tables.empty(2)
    for rows in ({(1, 2): 3, (7, 8): 9}, {(2, 3): 4}, {(1, 2): 5}):
        known = known.merged_with(Tables(TransitionTable.empty(2), phrases(rows)))

    left = {phrase_key(1, 2): 5, phrase_key(2, 3): 4}
    assert {key: row[0][0] for key, row in rows_of(known.phrases).items()} == left


def test_of_a_phrase_four_next_tokens_are_kept() -> None:
    for k in (2, 4, 8):
        few = phrases({(1, 2): 3}).with_k(k)
        merged = Tables.empty(2).merged_with(Tables(GOOD, few))
        assert merged.phrases.k == PHRASE_K
        assert merged.phrases.next_ids[0].tolist() == [3, NO_NEXT, NO_NEXT, NO_NEXT]


def test_a_smaller_vocabulary_is_one_for_tokens_and_phrases() -> None:
    known = Tables(GOOD, phrases({(1, 2): 3, (1, 9): 3})).below(7)
    assert known.tokens.keys.tolist() == [1]
    assert known.phrases.keys.tolist() == [phrase_key(1, 2)]
    assert no_phrases(GOOD).below(9).tokens is GOOD
