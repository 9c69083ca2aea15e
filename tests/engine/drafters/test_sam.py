"""What SAM-Decoding copies, alone and over Token Recycling."""

from engine.drafters.sam import SamDrafter, SamRecyclingDrafter
from engine.memory.transitions import Prediction, TokenMemory
from engine.options import DrafterOptions
from tests.engine.drafters.drawn import PICTURE, chained, drafted, paths, predicted

SIZES = DrafterOptions(nodes=100, max_depth=100)


def sam(nodes: int = 100) -> SamDrafter:
    return SamDrafter(DrafterOptions(nodes=nodes, max_depth=100), PICTURE)


def test_four_tokens_are_copied_for_every_one_that_matched() -> None:
    later = list(range(10, 30))
    assert chained(sam(), [1, *later, 1]) == later[:4]
    assert chained(sam(), [1, 2, *later, 1, 2]) == later[:8]
    assert chained(sam(), [1, 2, 3, *later, 9, 2, 3]) == later[:8]
    assert chained(sam(), [1, 2, 3]) == []


def test_at_most_59_tokens_are_copied() -> None:
    text = list(range(100, 200))
    assert chained(sam(), [*text, *text[:20]]) == text[20:79]


def test_the_longest_suffix_is_continued_where_it_occurred_first() -> None:
    assert chained(sam(1), [3, 8, 2, 3, 6, 7, 2, 3]) == [6]
    assert chained(sam(1), [2, 3, 6, 1, 2, 3, 7, 9, 2, 3]) == [6]


def test_no_more_is_copied_than_asked() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert chained(sam(nodes=2), text) == [4, 5]
    assert chained(sam(), text, max_depth=3) == [4, 5, 6]
    assert chained(sam(), text) == text[3:], "to the end of the text"


def test_pictures_are_neither_copied_nor_matched() -> None:
    assert chained(sam(), [1, 2, 3, 90, 91, 5, 1, 2]) == [3]
    assert chained(sam(), [1, 2, 90, 3, 7, 8, 1, 2, 90, 3]) == [7, 8, 1, 2], "3 alone matched"
    assert chained(sam(), [90, 1, 90]) == []


def combined(memory: TokenMemory) -> SamRecyclingDrafter:
    return SamRecyclingDrafter(SIZES, memory, PICTURE)


def test_over_token_recycling_only_matches_of_five_tokens_are_copied() -> None:
    memory = TokenMemory()
    memory.store(5, Prediction([60, 61], [0.5, 0.2], 0.5))
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    assert drafted(combined(memory), [*text, 2, 3, 4, 5]) == [(60,), (61,)]
    assert chained(combined(memory), [*text, 1, 2, 3, 4, 5]) == [6, 7, 8, 1, 2, 3, 4, 5]


def test_over_token_recycling_39_tokens_are_copied_however_long_the_match() -> None:
    text = list(range(100, 200))
    assert chained(combined(TokenMemory()), [*text, *text[:5]]) == text[5:44]


def test_the_matrix_learns_from_copied_tokens_too() -> None:
    memory = TokenMemory()
    both = combined(memory)
    both.start([1, 2, 3, 4, 5, 6, 1, 2, 3, 4])
    both.observe([5])
    assert paths(both.propose(1)) == {(6,): "lookup"}
    both.learn([0], predicted([(70, 0.5), (71, 0.2)], [(72, 0.5), (73, 0.2)]))
    assert drafted(both, [6], 1) == [(72,), (73,)]
    assert drafted(both, [5], 1) == [(70,), (71,)]
