"""Tokens a pass at the words that depend on the picture, by hand."""

from typing import Any

import pytest

from engine.bench.attributes import Part, Split, attribute_positions, split_attributes, split_by
from tests.engine.bench.documents import document, failed, outside, record


def test_a_pass_is_charged_to_the_token_at_which_it_ended() -> None:
    # First token, then passes: [1 2 3] [4] [5 6]. They end at 3, 4 and 6.
    chosen, others = split_by([3, 1, 2], 7, {3, 5}.__contains__)
    assert (chosen, others) == (Part(tokens=2, passes=1), Part(tokens=4, passes=2))


def test_the_parts_add_up_to_the_whole() -> None:
    chosen, others = split_by([3, 1, 2], 7, {3, 5}.__contains__)
    whole = chosen + others
    assert whole.mean_acceptance_length == 2.0
    assert whole.foreseen == pytest.approx(1 - 1 / 2.0)


def test_words_that_are_never_foreseen_have_one_token_a_pass() -> None:
    # A template that is always foreseen, and at its end a word that never is.
    chosen, others = split_by([4, 4], 9, {4, 8}.__contains__)
    assert (chosen.mean_acceptance_length, chosen.foreseen) == (1.0, 0.0)
    assert (others.mean_acceptance_length, others.foreseen) == (None, 1.0)


def test_nothing_chosen_has_no_share() -> None:
    chosen, _ = split_by([1, 1], 3, lambda _: False)
    assert (chosen.mean_acceptance_length, chosen.foreseen) == (None, None)


@pytest.mark.parametrize(
    ("pieces", "attributes"),
    [
        (["A", " large", " red", " star", " is", " here", "."], [" large", " red", " star"]),
        (["two", " cir", "cl", "es", ",", " no", " more"], [" cir", "cl", "es"]),
        (["In", " the", " top", " left", " corner"], [" top", " left"]),
        (["on", " a", " light", " blue", " background"], [" light", " blue"]),
        (["Red", ",", " hundred", " starts"], ["Red"]),
        (["a", " light", " meal"], []),
        ([" cr", "oss", "es", "", "!"], [" cr", "oss", "es"]),
    ],
)
def test_attribute_words_are_found_across_tokens(pieces: list[str], attributes: list[str]) -> None:
    assert [pieces[i] for i in sorted(attribute_positions(pieces))] == attributes


def test_the_split_is_over_answers_to_pairs_of_pictures() -> None:
    pieces = ["A", " red", " star", ".", ""]
    pair: dict[str, Any] = {"category": "pairs", "commits": (1, 3), "pieces": pieces}
    splits = split_attributes(
        document(
            record("recap", "a", **pair),
            record("recap", "b", **pair),
            record("recap", "c", **pair | {"category": "scenes"}),
            failed("recap", "d", category="pairs", pieces=pieces),
            outside("transformers", "a", category="pairs", commits=(2, 2), pieces=pieces),
            record("plain", "a", category="pairs", commits=(1, 1, 1, 1), pieces=pieces),
        )
    )
    assert splits == (
        Split("recap", attributes=Part(4, 2), rest=Part(4, 2)),
        Split("transformers", attributes=Part(2, 1), rest=Part(2, 1)),
        Split("plain", attributes=Part(2, 2), rest=Part(2, 2)),
    )


def test_without_pairs_there_is_nothing_to_split() -> None:
    assert split_attributes(document(record("recap"), record("recap", "b", category="pairs"))) == ()
