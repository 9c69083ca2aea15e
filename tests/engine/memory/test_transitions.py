"""The memories in RAM: the newest prediction of every key, and what goes into the file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.table import NO_NEXT, PAIR, TOKEN_BITS, TRIPLE
from engine.memory.transitions import (
    NO_CONTEXT,
    NO_TOKEN,
    ONE,
    THREE,
    TWO,
    ContextualMemory,
    PhraseMemory,
    Prediction,
    TokenMemory,
    kept,
    predictions_of,
)
from tests.engine.memory.tables import phrase_key, phrases, rows_of, runs_of, table


def row(token: int) -> Prediction:
    return Prediction([token, token + 1], [0.75, 0.25], 0.5)


FILE = table({1: [(10, 0.75), (11, 0.25)], 2: [(20, 0.5), (21, 0.5)]}, uses=7)


@pytest.mark.parametrize(
    ("probs", "confidence"),
    [
        ([1.0, 0.0, 0.0, 0.0], 1),
        ([0.25] * 4, 0),
        ([0.5, 0.5, 0.0, 0.0], 0.5),
        ([0.1, 0.1, 0.0, 0.0], 0.5),
        ([0.3], 1),
        ([0.0] * 4, 0),
    ],
)
def test_confidence_is_one_minus_the_entropy_over_log_k(
    probs: list[float], confidence: float
) -> None:
    assert Prediction(range(len(probs)), probs).confidence == pytest.approx(confidence, abs=1e-6)


def test_a_confidence_that_is_given_stays() -> None:
    assert Prediction([1, 2], [0.5, 0.5], 0.9).confidence == 0.9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_confidence_is_from_zero_to_one(probs: list[float]) -> None:
    assert 0 <= Prediction(range(len(probs)), probs).confidence <= 1


def test_a_row_keeps_ids_and_probabilities_in_order() -> None:
    (only,) = predictions_of(np.array([[9, 4]]), np.array([[0.75, 0.25]], np.float32))
    assert (list(only.ids), list(only.probs)) == ([9, 4], [0.75, 0.25])


def test_the_two_newest_predictions_of_a_token_are_known() -> None:
    memory = TokenMemory(FILE)
    assert memory.recent(4) is None
    assert memory.recent(1) == (row(10),)
    for newer in (11, 12):
        memory.store(1, row(newer))
        assert memory.recent(1) == (row(newer), row(newer - 1))
        assert memory.recall(1) == row(newer)


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        (([1, 2, 3], [0.5, 0.25, 0.25]), ([4, 2], [0.75, 0.25]), ([4, 2], [0.375, 0.25])),
        (([1, 2], [0.5, 0.5]), ([2, 3, 1], [0.5, 0.25, 0.25]), ([2, 1, 3], [0.5, 0.375, 0.125])),
    ],
)
def test_a_file_gets_both_mixed_with_as_many_tokens_as_the_newer_one_has(
    older: tuple[list[int], list[float]],
    newer: tuple[list[int], list[float]],
    expected: tuple[list[int], list[float]],
) -> None:
    memory = TokenMemory()
    memory.store(5, Prediction(*older))
    memory.store(5, Prediction(*newer))
    written = memory.written()
    assert written is not None
    assert (written.next_ids[0].tolist(), written.probs[0].tolist()) == expected


@given(st.lists(st.integers(0, NO_TOKEN - 1), min_size=1))
def test_a_context_holds_the_last_three_tokens(tokens: list[int]) -> None:
    context = NO_CONTEXT
    for token in tokens:
        context = (context << TOKEN_BITS | token) & THREE
    third, second, first = ([NO_TOKEN] * 3 + tokens)[-3:]
    assert context & ONE == first
    assert context & TWO == second << TOKEN_BITS | first
    assert context == (third << TOKEN_BITS | second) << TOKEN_BITS | first


def test_the_newest_prediction_stands() -> None:
    memory = TokenMemory(FILE)
    memory.store(1, row(30))
    memory.store(3, row(40))
    memory.store(3, row(50))
    recalled = [memory.recall(token) for token in (1, 2, 3, 4)]
    assert [None if each is None else list(each.ids) for each in recalled] == [
        [30, 31],
        [20, 21],
        [50, 51],
        None,
    ]
    assert len(memory) == 3


def test_only_what_was_written_since_the_last_save_is_to_be_saved() -> None:
    memory = TokenMemory(FILE)
    memory.recall(2)
    assert memory.written() is None
    memory.store(5, row(30))
    memory.store(1, row(30))
    memory.store(1, row(60))
    written = memory.written()
    assert written is not None
    assert rows_of(written) == {1: ([60, 30], [0.375, 0.375], 2), 5: ([30, 31], [0.75, 0.25], 1)}
    memory.mark_saved()
    assert memory.written() is None
    memory.store(6, row(70))
    written = memory.written()
    assert written is not None
    assert rows_of(written) == {6: ([70, 71], [0.75, 0.25], 1)}


def test_an_empty_memory_knows_nothing() -> None:
    memory = TokenMemory()
    assert memory.recall(0) is None
    assert len(memory) == 0
    assert memory.written() is None


@pytest.mark.parametrize("token", [0, 1, NO_TOKEN - 1])
def test_every_token_id_can_be_a_key(token: int) -> None:
    memory = TokenMemory()
    memory.store(token, row(0))
    assert memory.recall(token) == row(0)


def test_predictions_with_an_id_twice_can_be_saved() -> None:
    memory = TokenMemory()
    for _ in range(2):
        memory.store(1, Prediction([5, 9, 9], [0.75, 0.0, 0.0]))
    memory.store(2, Prediction([5, 6, 7], [0.5, 0.25, 0.25]))
    written = memory.written()
    assert written is not None
    assert written.next_ids[0].tolist() == [5, 9, NO_NEXT]


def test_a_run_counts_predictions_with_the_same_first_choice() -> None:
    runs, before = [], None
    for first in (5, 5, 5, 6, 6, 5):
        before = kept(row(first), before)
        runs.append(before)
    assert runs == [(row(5), 1), (row(5), 2), (row(5), 3), (row(6), 1), (row(6), 2), (row(5), 1)]


def learned(pairs: dict[int, int], triples: dict[int, int]) -> ContextualMemory:
    memory = ContextualMemory()
    memory.pairs = {key: (row(token), 1) for key, token in pairs.items()}
    memory.triples = {key: (row(token), 1) for key, token in triples.items()}
    return memory


def test_longer_keys_of_earlier_requests_are_kept_apart_by_their_length() -> None:
    memory = PhraseMemory()
    memory.absorb(learned({5: 10}, {5: 20}))  # a token id 0 in front makes both the same number
    assert memory.recall(PAIR | 5) == (row(10), 1)
    assert memory.recall(TRIPLE | 5) == (row(20), 1)
    assert memory.recall(PAIR | 6) is None
    memory.absorb(learned({5: 30}, {}))
    assert memory.recall(PAIR | 5) == (row(30), 1)


def test_the_longer_keys_stored_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhraseMemory, "MOST", 3)
    memory = PhraseMemory()
    memory.absorb(learned({1: 1, 2: 2, 3: 3}, {}))
    memory.absorb(learned({1: 4, 9: 9}, {}))
    assert len(memory) == 3
    assert memory.recall(PAIR | 2) is None
    assert memory.recall(PAIR | 1) == (row(4), 1)


SAVED = phrases({(1, 2): 3, (2, 3): 4, (1, 2, 3): 5}, run=6)


def test_phrases_of_a_file_are_known_and_newer_ones_prevail() -> None:
    memory = PhraseMemory(SAVED)
    assert len(memory) == 3
    for _ in range(2):
        found = memory.recall(phrase_key(1, 2, 3))
        assert found is not None
        newest, run = found
        assert (newest.ids[0], newest.probs[0], newest.confidence, run) == (5, 1.0, 1.0, 6)
    for unknown in ((0, 0), (3, 3), (1, 2, 2), (9, 9, 9)):
        assert memory.recall(phrase_key(*unknown)) is None
    memory.absorb(learned({phrase_key(1, 2) & TWO: 40, 7: 50}, {}))
    assert memory.recall(phrase_key(1, 2)) == (row(40), 1)
    assert len(memory) == 4


def test_every_phrase_of_a_file_is_found_wherever_it_stands() -> None:
    rows = {(first, second): first + second for first in range(10) for second in range(0, 10, 2)}
    memory = PhraseMemory(phrases(rows))
    for first in range(9, -1, -1):
        for second in range(10):
            found = memory.recall(phrase_key(first, second))
            assert (found[0].ids[0] if found else None) == rows.get((first, second))


def test_only_phrases_absorbed_since_the_last_save_are_to_be_saved() -> None:
    memory = PhraseMemory(SAVED)
    memory.recall(phrase_key(1, 2))
    assert memory.written() is None
    request = learned({5: 10}, {6: 20})
    memory.absorb(request)
    request.pairs[4] = row(30), 2
    memory.absorb(request)
    written = memory.written()
    assert written is not None
    assert rows_of(written) == {
        PAIR | 4: ([30, 31], [0.75, 0.25], 2),
        PAIR | 5: ([10, 11], [0.75, 0.25], 1),
        TRIPLE | 6: ([20, 21], [0.75, 0.25], 1),
    }
    assert runs_of(written) == {PAIR | 4: 2, PAIR | 5: 1, TRIPLE | 6: 1}
    memory.mark_saved()
    memory.absorb(request)
    assert memory.written() is None, "nothing of it is new"


def test_of_a_phrase_at_most_four_next_tokens_are_saved() -> None:
    request = ContextualMemory()
    request.pairs[5] = Prediction([1, 2, 3, 4, 5], [0.5, 0.25, 0.125, 0.0625, 0.0], 0.5), 1
    memory = PhraseMemory()
    memory.absorb(request)
    written = memory.written()
    assert written is not None
    assert written.next_ids.tolist() == [[1, 2, 3, 4]]


def test_what_is_forgotten_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhraseMemory, "MOST", 1)
    memory = PhraseMemory()
    memory.absorb(learned({1: 1, 2: 2}, {}))
    written = memory.written()
    assert written is not None
    assert written.keys.tolist() == [PAIR | 2]
