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
    assert fuse((), ()) == {}


def test_one_key_alone_is_believed_as_it_is() -> None:
    only = row((5, 0.6), (3, 0.3))
    for count in (1, 3):
        assert fuse((only,) * count, WEIGHTS[:count]) == pytest.approx({5: 0.6, 3: 0.3})


def test_equally_confident_keys_share_by_specificity() -> None:
    fused = fuse((row((1, 1.0)), row((2, 1.0)), row((3, 1.0))), WEIGHTS)
    assert fused == pytest.approx({1: 1 / 7, 2: 2 / 7, 3: 4 / 7})


def test_what_several_keys_say_adds_up() -> None:
    retrieved = (row((1, 0.5), (2, 0.5)), row((1, 1.0)))
    assert fuse(retrieved, (1.0, 1.0)) == pytest.approx({1: 0.75, 2: 0.25})


def test_a_key_that_has_no_idea_yields_to_one_that_has() -> None:
    sure, lost = row((1, 0.9), (2, 0.1), confidence=0.9), row((3, 0.5), (4, 0.5), confidence=0.0)
    fused = fuse((sure, lost), (1.0, 4.0))
    assert max(fused, key=fused.__getitem__) == 1
    assert fused[1] == pytest.approx(0.9, abs=0.02)


def test_a_token_that_a_key_names_twice_is_one_candidate() -> None:
    only = row((5, 0.5), (5, 0.3), (3, 0.2))
    assert fuse((only,), (1.0,)) == pytest.approx({5: 0.8, 3: 0.2})


def test_what_is_too_improbable_under_a_key_is_left_out() -> None:
    retrieved = (row((1, 0.6), (2, 0.1)), row((3, 0.7), (2, 0.1)))
    all_of_them = fuse(retrieved, WEIGHTS[:2])
    assert fuse(retrieved, WEIGHTS[:2], least=0.2) == {each: all_of_them[each] for each in (1, 3)}


predictions = st.builds(
    lambda probs, confidence: Prediction(
        tuple(range(len(probs))),
        tuple(sorted((p / len(probs) for p in probs), reverse=True)),
        confidence,
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0, 1),
)


@given(st.lists(predictions, max_size=3))
def test_no_candidate_is_likelier_than_under_its_likeliest_key(retrieved: list[Prediction]) -> None:
    most: dict[int, float] = {}
    for each in retrieved:
        for token, probability in zip(each.ids, each.probs, strict=True):
            most[token] = max(most.get(token, 0.0), probability)
    for token, probability in fuse(retrieved, WEIGHTS[: len(retrieved)]).items():
        assert probability <= most[token] or math.isclose(probability, most[token])
