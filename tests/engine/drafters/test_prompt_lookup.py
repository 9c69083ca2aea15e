"""What prompt lookup copies, by hand and against transformers' own."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from engine.drafters.prompt_lookup import LONGEST_NGRAM, PromptLookupDrafter
from engine.options import DrafterOptions
from tests.engine.drafters.drawn import PICTURE, chained


def drafter(nodes: int = 10, max_depth: int = 99) -> PromptLookupDrafter:
    return PromptLookupDrafter(DrafterOptions(nodes=nodes, max_depth=max_depth), PICTURE)


def test_what_followed_the_last_tokens_is_copied_to_the_end_of_the_text() -> None:
    assert chained(drafter(), [1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5, 1, 2]
    assert chained(drafter(), [1, 2, 3, 4]) == []


def test_no_more_is_copied_than_asked() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    assert chained(drafter(nodes=2), text) == [3, 4]
    assert chained(drafter(max_depth=3), text) == [3, 4, 5]
    assert chained(drafter(), text, max_depth=1) == [3]
    assert chained(drafter(nodes=0), text) == []


def test_a_longer_match_prevails_and_of_equals_the_first() -> None:
    assert chained(drafter(1), [3, 8, 2, 3, 6, 1, 2, 3, 7, 1, 2, 3]) == [7]
    assert chained(drafter(1), [3, 8, 2, 3, 6, 2, 3, 7, 2, 3]) == [6]
    assert chained(drafter(1), [3, 8, 9, 3]) == [8]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.integers(1, 12))
def test_it_copies_what_transformers_would(text: list[int], tokens: int) -> None:
    theirs = PromptLookupCandidateGenerator(
        num_output_tokens=tokens, max_matching_ngram_size=LONGEST_NGRAM, max_length=1000
    )
    ids, _ = theirs.get_candidates(torch.tensor([text]))
    assert chained(drafter(tokens), text) == ids[0, len(text) :].tolist()


def test_pictures_are_neither_copied_nor_matched() -> None:
    assert chained(drafter(), [1, 2, 3, 90, 5, 1, 2]) == [3]
    assert chained(drafter(), [1, 2, 90, 3, 7, 2, 90, 3]) == [7, 2], "only 3 is matched"
    assert chained(drafter(), [90, 1, 2, 90]) == []


def test_a_request_knows_nothing_of_the_one_before() -> None:
    lookup = drafter()
    assert chained(lookup, [1, 2, 3, 1]) == [2, 3, 1]
    assert chained(lookup, [4, 1]) == []
