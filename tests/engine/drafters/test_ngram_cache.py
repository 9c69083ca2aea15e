"""What llama.cpp's n-gram cache drafts: clear followers only."""

from engine.drafters.ngram_cache import NgramCacheDrafter
from engine.options import DrafterOptions
from tests.engine.drafters.drawn import PICTURE, chained, paths


def drafter(nodes: int = 16) -> NgramCacheDrafter:
    return NgramCacheDrafter(DrafterOptions(nodes=nodes), PICTURE)


def test_one_token_must_have_been_followed_twice_and_by_the_same_two_times_of_three() -> None:
    assert chained(drafter(1), [1, 2, 9, 1]) == [], "seen once"
    assert chained(drafter(1), [1, 2, 9, 1, 2, 8, 1]) == [2]
    assert chained(drafter(1), [1, 2, 9, 1, 2, 8, 1, 3, 7, 1]) == [2], "two of three"
    assert chained(drafter(1), [1, 2, 9, 1, 3, 8, 1]) == [], "one of two"


def test_two_tokens_must_have_been_followed_twice_and_half_the_times_by_the_same() -> None:
    assert chained(drafter(1), [1, 2, 3, 9, 1, 2]) == []
    assert chained(drafter(1), [1, 2, 3, 9, 1, 2, 4, 8, 1, 2]) == [3], "of equals the first"
    assert chained(drafter(1), [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 5, 7, 1, 2]) == []


def test_three_tokens_need_to_have_been_seen_once() -> None:
    assert chained(drafter(1), [1, 2, 3, 4, 9, 1, 2, 3]) == [4]


def test_a_longer_n_gram_prevails() -> None:
    text = [2, 3, 5, 9, 2, 3, 5, 8, 1, 2, 3, 4, 7]
    assert chained(drafter(1), [*text, 2, 3]) == [5]
    assert chained(drafter(1), [*text, 1, 2, 3]) == [4]


def test_drafted_tokens_are_part_of_the_next_n_gram() -> None:
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
    assert chained(drafter(), text) == [4, 5, 6, 9, 1, 2, 3, *[4, 5, 6, 9, 1, 2, 3, 4, 5]]
    assert chained(drafter(nodes=2), text) == [4, 5]
    assert chained(drafter(), text, max_depth=1) == [4]


def test_earlier_requests_are_believed_if_they_were_surer() -> None:
    cache = drafter(1)
    chained(cache, [1, 2, 3, 4, 9])
    assert chained(cache, [1, 2, 3]) == [], "once is not enough"
    chained(cache, [1, 2, 3, 4, 9])
    cache.start([8, 1, 2])
    cache.observe([3])
    assert paths(cache.propose(9)) == {(4,): "history"}


def test_this_request_is_asked_before_the_earlier_ones() -> None:
    cache = drafter(1)
    for _ in range(3):
        chained(cache, [1, 2, 3, 4, 9])
    cache.start([1, 2, 3, 5, 9, 1, 2])
    cache.observe([3])
    assert paths(cache.propose(9)) == {(5,): "lookup"}


def test_pictures_are_neither_drafted_nor_matched() -> None:
    assert chained(drafter(), [1, 2, 3, 90, 9, 1, 2, 3]) == []
    assert chained(drafter(), [1, 2, 90, 3, 4, 9, 1, 2, 90, 3]) == []
    assert chained(drafter(), [1, 90, 1, 90]) == []
