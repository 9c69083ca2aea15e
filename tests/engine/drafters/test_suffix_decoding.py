"""What SuffixDecoding drafts: likely continuations by counts, in this text and in earlier ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafters.suffix_decoding import CountedIndex, SuffixDecodingDrafter
from engine.options import DrafterOptions
from tests.engine.drafters.drawn import PICTURE, chained, drafted, paths

texts = st.integers(1, 4).flatmap(lambda symbols: st.lists(st.integers(0, symbols), max_size=40))


def drafter(nodes: int = 64) -> SuffixDecodingDrafter:
    return SuffixDecodingDrafter(DrafterOptions(nodes=nodes, max_depth=64), PICTURE)


def followers(text: list[int], string: list[int]) -> dict[int, int]:
    """Brute force: how often each token follows a string in a text."""
    counts: dict[int, int] = {}
    for end in range(len(string), len(text)):
        if text[end - len(string) : end] == string:
            counts[text[end]] = counts.get(text[end], 0) + 1
    return counts


@given(texts)
def test_shares_are_those_of_what_followed_every_repeated_suffix(text: list[int]) -> None:
    index = CountedIndex()
    index.extend(text)
    for state, length in index.shorter(index.own_match()):
        expected = followers(text, text[len(text) - length :])
        found = {token: share for share, token, _ in index.followers(state)}
        total = sum(expected.values())
        assert found == pytest.approx({token: n / total for token, n in expected.items()})


@given(texts, texts)
def test_the_match_of_another_text_is_its_longest_suffix_that_occurred(
    text: list[int], other: list[int]
) -> None:
    index = CountedIndex()
    index.extend(text)
    match = (0, 0)
    for at, token in enumerate(other):
        match = index.follow(match, token)
        suffixes = (other[at + 1 - n : at + 1] for n in range(at + 1, 0, -1))
        inside = (s for s in suffixes if any(text[i : i + len(s)] == s for i in range(len(text))))
        assert match[1] == len(next(inside, []))


def test_the_budget_is_the_length_of_the_match() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert chained(drafter(), [*text, 1]) == [2]
    assert chained(drafter(), [*text, 1, 2, 3]) == [4, 5, 6]
    assert chained(drafter(nodes=2), [*text, 1, 2, 3]) == [4, 5]
    assert chained(drafter(), [*text, 1, 2, 3], max_depth=1) == [4]
    assert chained(drafter(), text) == []


def test_a_tree_has_the_likeliest_nodes() -> None:
    often, seldom = [1, 2, 3, 4, 5], [1, 2, 3, 6, 7]
    decoding = drafter()
    decoding.start([*often, 50, *often, 51, *seldom, 52, 1, 2])
    decoding.observe([3])
    tree = decoding.propose(9)
    assert list(paths(tree)) == [(4,), (4, 5), (6,)]
    assert tree.probabilities == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3])


def test_what_is_less_likely_than_one_in_ten_is_not_drafted() -> None:
    text = [token for other in range(100, 109) for token in (1, 2, 3, other)]
    assert len(drafted(drafter(), [*text, 1, 2, 3], 1)) == 3, "nine of one in nine, three matched"
    text = [token for other in range(100, 111) for token in (1, 2, 3, other)]
    assert drafted(drafter(), [*text, 1, 2, 3], 1) == []


def test_a_shorter_match_is_taken_where_more_of_it_is_expected() -> None:
    unsure = [token for other in range(100, 109) for token in (50, 1, 2, other)]
    sure = [1, 2, 7, 8] * 60
    decoding = drafter()
    decoding.start([*unsure, *sure, 50, 1])
    decoding.observe([2])
    assert list(paths(decoding.propose(9))) == [(7,), (7, 8)]


def test_outputs_of_earlier_requests_are_known_but_not_their_prompts() -> None:
    decoding = drafter()
    decoding.start([20, 21, 22, 23])
    decoding.observe([1, 2, 3, 4, 5])
    decoding.start([9, 1])
    decoding.observe([2])
    assert paths(decoding.propose(9)) == {(3,): "history", (3, 4): "history"}
    assert drafted(decoding, [9, 20, 21]) == []


def test_of_equal_drafts_this_request_s_own_is_taken() -> None:
    decoding = drafter()
    decoding.start([9])
    decoding.observe([1, 2, 3, 4])
    decoding.start([1, 2, 5, 6, 1])
    decoding.observe([2])
    assert paths(decoding.propose(9)) == {(5,): "lookup", (5, 6): "lookup"}


def test_pictures_are_neither_drafted_nor_matched() -> None:
    decoding = drafter()
    assert chained(decoding, [1, 2, 3, 90, 91, 9, 1, 2, 3]) == []
    assert chained(decoding, [1, 2, 3, 90, 5, 7, 6, 2, 3, 90, 5]) == [7]
    decoding.start([9])
    decoding.observe([1, 2, 90, 3, 4, 5])
    assert chained(decoding, [8, 1, 2]) == []
    assert chained(decoding, [8, 2, 90, 3]) == [4], "3 alone matched"
