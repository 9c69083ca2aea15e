"""The suffix index against brute force over the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from engine.suffix import SuffixIndex

texts = st.integers(1, 4).flatmap(lambda symbols: st.lists(st.integers(0, symbols), max_size=60))


def longest_repeat(text: list[int]) -> int:
    """Tokens in the longest suffix that also ends earlier in the text."""
    for length in range(len(text) - 1, 0, -1):
        ends = range(length, len(text))
        if any(text[end - length : end] == text[-length:] for end in ends):
            return length
    return 0


def check(index: SuffixIndex, text: list[int]) -> None:
    assert index.text == text
    assert index.match_length == longest_repeat(text)
    if index.match_length:
        start = index.match_end - index.match_length
        assert start >= 0
        assert index.match_end < len(text), "an earlier occurrence, which something followed"
        assert text[start : index.match_end] == text[-index.match_length :]


@given(texts)
def test_the_match_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    index = SuffixIndex()
    for at, token in enumerate(text):
        index.extend([token])
        check(index, text[: at + 1])


@given(texts, texts)
def test_tokens_may_come_one_by_one_or_together(head: list[int], tail: list[int]) -> None:
    together, singly = SuffixIndex(), SuffixIndex()
    together.extend(head)
    together.extend(tail)
    for token in head + tail:
        singly.extend([token])
    check(together, head + tail)
    assert (together.match_length, together.match_end) == (singly.match_length, singly.match_end)


def test_of_several_occurrences_the_newest_is_told() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    assert index.match_length == 3  # 9 1 2
    assert index.text[index.match_end] == 4
    index.extend([5, 8, 1, 2])
    assert index.match_length == 2
    assert index.text[index.match_end] == 5


@given(texts)
def test_without_recency_the_first_occurrence_is_told(text: list[int]) -> None:
    index = SuffixIndex(recency_steps=0)
    index.extend(text)
    check(index, text)
    if index.match_length:
        suffix = text[-index.match_length :]
        ends = range(index.match_length, index.match_end)
        assert all(text[end - len(suffix) : end] != suffix for end in ends)


def test_a_new_text_matches_nothing() -> None:
    index = SuffixIndex()
    assert (index.match_length, index.text) == (0, [])
    index.extend([1, 2, 3])
    assert index.match_length == 0


def test_a_long_repetition_is_found_whole() -> None:
    index = SuffixIndex()
    index.extend([7] * 5000)
    assert index.match_length == 4999
    index.extend([1, 2] * 2000)
    assert index.match_length == 3998
