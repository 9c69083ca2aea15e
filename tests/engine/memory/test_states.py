"""Predictions that are recalled for the states in which they were made."""

from math import exp

import pytest

from engine.memory.states import FADING, WINDOW, Seen, StateMemory
from engine.memory.transitions import Prediction


def seen(before: int, behind: int = 0, token: int = 1) -> Seen:
    return Seen(before, behind, Prediction((token,), (0.5,)))


def bits(count: int) -> int:
    """A state that differs by so many bits from the one without any."""
    return (1 << count) - 1


def test_the_most_similar_state_weighs_most() -> None:
    far, near = seen(bits(12), 7, token=1), seen(bits(2), 8, token=2)
    found = StateMemory.similar([far, near], 0)
    assert found is not None
    assert found.rows == [far.row, near.row]
    assert found.shares[1] / found.shares[0] == pytest.approx(exp(10 / FADING))
    assert sum(found.shares) == pytest.approx(1)
    assert found.behind == 8


def test_of_equally_similar_states_the_first_says_where_the_target_goes() -> None:
    found = StateMemory.similar([seen(1, 3), seen(2, 4)], 0)
    assert found is not None
    assert (found.shares, found.behind) == ([0.5, 0.5], 3)


def test_states_that_differ_by_much_more_do_not_count() -> None:
    near, edge, far = (seen(bits(5 + more)) for more in (0, WINDOW, WINDOW + 1))
    found = StateMemory.similar([far, edge, near], 0)
    assert found is not None
    assert found.rows == [edge.row, near.row]


def test_a_few_predictions_are_recalled_the_newest_of_those_that_count() -> None:
    memory = StateMemory()
    all_seen = [seen(1, token=at) for at in range(StateMemory.NEAREST + 3)]
    for each in all_seen:
        memory.store(5, each)
    found = StateMemory.similar(memory.behind(5), 1)
    assert found is not None
    assert found.rows == [each.row for each in all_seen[: -StateMemory.NEAREST - 1 : -1]]


def test_the_newest_are_kept_of_each_token() -> None:
    memory = StateMemory()
    for at in range(StateMemory.MOST + 10):
        memory.store(5, seen(at))
    memory.store(6, seen(1))
    kept = [each.before for each in memory.behind(5)]
    assert kept == list(range(StateMemory.MOST + 9, 9, -1))
    assert len(list(memory.behind(6))) == 1


def test_nothing_is_like_a_state_behind_an_unknown_token() -> None:
    assert StateMemory.similar(StateMemory().behind(5), 0) is None
