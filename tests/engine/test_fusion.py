"""Fusion: distributions weighted by specificity and confidence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fusion import fuse
from engine.memory.transitions import Prediction

WEIGHTS = (1.0, 2.0, 4.0)


def row(*pairs: tuple[int, float], confidence: float = 0.5) -> Prediction:
    ids, probs = zip(*pairs, strict=True)
    return Prediction(ids, probs, confidence)


def test_nothing_retrieved_is_nothing_proposed() -> None:
    assert fuse((None, None, None), WEIGHTS) == []


def test_one_key_alone_is_believed_as_it_is() -> None:
    only = row((5, 0.6), (3, 0.3))
    for retrieved in ((only, None, None), (None, only, None), (None, None, only), (only,) * 3):
        assert fuse(retrieved, WEIGHTS) == [(0.6, 5), (0.3, 3)]


def test_equally_confident_keys_share_by_specificity() -> None:
    fused = fuse((row((1, 1.0)), row((2, 1.0)), row((3, 1.0))), WEIGHTS)
    assert [token for _, token in fused] == [3, 2, 1]
    assert [probability for probability, _ in fused] == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_what_several_keys_say_adds_up() -> None:
    retrieved = (row((1, 0.5), (2, 0.5)), row((1, 1.0)), None)
    fused = fuse(retrieved, (1.0, 1.0, 1.0))
    assert {token: p for p, token in fused} == pytest.approx({1: 0.75, 2: 0.25})


def test_a_key_that_has_no_idea_yields_to_one_that_has() -> None:
    sure, lost = row((1, 0.9), (2, 0.1), confidence=0.9), row((3, 0.5), (4, 0.5), confidence=0.0)
    (probability, token), *_ = fuse((sure, None, lost), WEIGHTS)
    assert token == 1
    assert probability == pytest.approx(0.9, abs=0.02)


def test_a_token_that_a_key_names_twice_is_one_candidate() -> None:
    only = row((5, 0.5), (5, 0.3), (3, 0.2))
    assert [token for _, token in fuse((only, None, None), WEIGHTS)] == [5, 3]


def test_what_is_too_improbable_under_a_key_is_left_out() -> None:
    retrieved = (row((1, 0.6), (2, 0.1)), row((3, 0.7), (2, 0.1)), None)
    assert {token for _, token in fuse(retrieved, WEIGHTS, least=0.2)} == {1, 3}
    assert fuse(retrieved, WEIGHTS, least=0.2)[0] == fuse(retrieved, WEIGHTS)[0]


predictions = st.none() | st.builds(
    lambda probs, confidence: Prediction(
        tuple(range(len(probs))),
        tuple(sorted((p / len(probs) for p in probs), reverse=True)),
        confidence,
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0, 1),
)


@given(st.tuples(predictions, predictions, predictions))
def test_the_result_is_ranked_and_no_likelier_than_its_parts(
    retrieved: tuple[Prediction | None, Prediction | None, Prediction | None],
) -> None:
    fused = fuse(retrieved, WEIGHTS)
    probabilities = [probability for probability, _ in fused]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len({token for _, token in fused}) == len(fused)
    most: dict[int, float] = {}
    for each in retrieved:
        for token, probability in zip(each.ids, each.probs, strict=True) if each else ():
            most[token] = max(most.get(token, 0.0), probability)
    for probability, token in fused:
        assert probability <= most[token] or math.isclose(probability, most[token])
