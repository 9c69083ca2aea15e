"""Fusion: distributions weighted by specificity and confidence, and the copied continuation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fusion import fuse
from engine.memory.transitions import Prediction

WEIGHTS = (1.0, 2.0, 4.0)
NOTHING = (0.0, -1)


def row(*pairs: tuple[int, float], confidence: float = 0.5) -> Prediction:
    ids, probs = zip(*pairs, strict=True)
    return Prediction(ids, probs, confidence)


def test_nothing_retrieved_is_nothing_proposed() -> None:
    assert fuse((None, None, None), WEIGHTS, NOTHING) == []


def test_one_key_alone_is_believed_as_it_is() -> None:
    only = row((5, 0.6), (3, 0.3))
    for retrieved in ((only, None, None), (None, only, None), (None, None, only), (only,) * 3):
        assert fuse(retrieved, WEIGHTS, NOTHING) == [(0.6, 5), (0.3, 3)]


def test_equally_confident_keys_share_by_specificity() -> None:
    fused = fuse((row((1, 1.0)), row((2, 1.0)), row((3, 1.0))), WEIGHTS, NOTHING)
    assert [token for _, token in fused] == [3, 2, 1]
    assert [probability for probability, _ in fused] == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_what_several_keys_say_adds_up() -> None:
    retrieved = (row((1, 0.5), (2, 0.5)), row((1, 1.0)), None)
    fused = fuse(retrieved, (1.0, 1.0, 1.0), NOTHING)
    assert {token: p for p, token in fused} == pytest.approx({1: 0.75, 2: 0.25})


def test_a_key_that_has_no_idea_yields_to_one_that_has() -> None:
    sure, lost = row((1, 0.9), (2, 0.1), confidence=0.9), row((3, 0.5), (4, 0.5), confidence=0.0)
    (probability, token), *_ = fuse((sure, None, lost), WEIGHTS, NOTHING)
    assert token == 1
    assert probability == pytest.approx(0.9, abs=0.02)


def test_a_copied_continuation_stands_where_it_is_surer() -> None:
    known = (None, row((5, 0.6), (3, 0.3)), None)
    assert fuse(known, WEIGHTS, (0.8, 9))[0] == (0.8, 9)
    assert fuse(known, WEIGHTS, (0.8, 3)) == [(0.8, 3), (0.6, 5)]
    assert fuse(known, WEIGHTS, (0.2, 3)) == [(0.6, 5), (0.3, 3)]
    assert fuse((None, None, None), WEIGHTS, (0.8, 9)) == [(0.8, 9)]


predictions = st.none() | st.builds(
    lambda probs, confidence: Prediction(
        tuple(range(len(probs))),
        tuple(sorted((p / len(probs) for p in probs), reverse=True)),
        confidence,
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0, 1),
)


@given(
    st.tuples(predictions, predictions, predictions), st.tuples(st.floats(0, 1), st.integers(0, 9))
)
def test_the_result_is_ranked_and_no_likelier_than_its_parts(
    retrieved: tuple[Prediction | None, Prediction | None, Prediction | None],
    copied: tuple[float, int],
) -> None:
    fused = fuse(retrieved, WEIGHTS, copied)
    probabilities = [probability for probability, _ in fused]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len({token for _, token in fused}) == len(fused)
    most: dict[int, float] = {copied[1]: copied[0]}
    for each in retrieved:
        for token, probability in zip(each.ids, each.probs, strict=True) if each else ():
            most[token] = max(most.get(token, 0.0), probability)
    for probability, token in fused:
        assert probability <= most[token] or math.isclose(probability, most[token])
