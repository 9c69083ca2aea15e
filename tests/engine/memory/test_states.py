"""Predictions that are recalled for the states in which they were made."""

from math import exp

import pytest

from engine.memory.states import FADING, WINDOW, Similar, StateMemory
from engine.memory.transitions import Prediction

TOKEN = 5


def predicted(token: int) -> Prediction:
    return Prediction((token,), (0.5,))


def remembered(*states: int) -> StateMemory:
    """A memory of predictions behind a token in some states, each of its own number."""
    memory = StateMemory()
    for number, before in enumerate(states):
        memory.store(TOKEN, before, 100 + number, predicted(number))
    return memory


def similar(before: int, *memories: StateMemory) -> Similar:
    found = StateMemory.similar(memories, TOKEN, before)
    assert found is not None
    return found


def numbers(found: Similar) -> list[int]:
    return [row.ids[0] for row in found.rows]


def bits(count: int) -> int:
    """A state that differs by so many bits from the one without any."""
    return (1 << count) - 1


def test_the_most_similar_state_weighs_most() -> None:
    found = similar(0, remembered(bits(2), bits(12)))
    assert numbers(found) == [1, 0], "the newest first"
    assert found.shares[1] / found.shares[0] == pytest.approx(exp(10 / FADING))
    assert sum(found.shares) == pytest.approx(1)
    assert found.behind == 100


def test_of_equally_similar_states_the_newest_says_where_the_target_goes() -> None:
    found = similar(0, remembered(1, 2))
    assert (found.shares, found.behind) == ([0.5, 0.5], 101)


def test_states_that_differ_by_much_more_do_not_count() -> None:
    found = similar(0, remembered(*(bits(5 + more) for more in (WINDOW + 1, 0, WINDOW))))
    assert numbers(found) == [2, 1]


def test_a_few_predictions_are_recalled_the_newest_of_those_that_count() -> None:
    most = StateMemory.NEAREST
    found = similar(1, remembered(*[1] * (most + 3)))
    assert numbers(found) == list(range(most + 2, 2, -1))


def test_of_more_that_count_the_most_similar_are_recalled() -> None:
    most = StateMemory.NEAREST
    found = similar(0, remembered(0, *[bits(WINDOW)] * most, bits(3)))
    assert numbers(found) == [0, most + 1, *range(most, 2, -1)]
    found = similar(0, remembered(*[bits(WINDOW)] * most), remembered(0))
    assert numbers(found)[0] == 0
    assert max(found.shares) == found.shares[0]


def test_tokens_to_which_nothing_was_added_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = StateMemory()
    for token in (1, 2, 3, 1):
        memory.begin()
        for state in range(3):
            memory.store(token, state, 0, predicted(9))
    monkeypatch.setattr(StateMemory, "LIMIT", 8)
    memory.begin()
    known = [StateMemory.similar((memory,), token, 0) is not None for token in (1, 2, 3)]
    assert known == [True, False, False]


def test_the_newest_are_kept_of_each_token() -> None:
    memory = remembered(0, *[bits(20)] * StateMemory.MOST)
    memory.store(TOKEN + 1, 0, 0, predicted(9))
    assert similar(0, memory).behind == 100 + StateMemory.MOST, "the oldest is gone"


def test_what_is_in_several_memories_is_compared() -> None:
    found = similar(0, remembered(bits(9)), StateMemory(), remembered(bits(9), bits(3)))
    assert numbers(found) == [0, 1, 0]
    assert found.behind == 101


def test_nothing_is_like_a_state_before_an_unknown_token() -> None:
    assert StateMemory.similar((StateMemory(), remembered(1)), TOKEN + 1, 1) is None
