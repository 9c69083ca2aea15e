import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.table import NO_NEXT, TransitionTable
from tests.engine.memory.tables import rows_of, table, tables


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
    columns = {name: getattr(GOOD, name) for name in ("keys", "next_ids", "probs", "uses")}
    with pytest.raises(ValueError, match=next(iter(change)) + " must"):
        TransitionTable(**columns | change)
