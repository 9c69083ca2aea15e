"""What RACER drafts: retrieved n-grams, and recycled predictions behind them."""

from collections import Counter

from engine.drafters.racer import RacerDrafter
from engine.memory.transitions import Prediction, TokenMemory
from engine.options import DrafterOptions
from tests.engine.drafters.drawn import PICTURE, drafted, paths, predicted

REST = list(range(40, 50))
"""Ten other tokens, so that n-grams before them are complete."""


def racer(memory: TokenMemory | None = None, nodes: int = 63, k: int = 8) -> RacerDrafter:
    options = DrafterOptions(nodes=nodes, k=k, max_depth=20)
    return RacerDrafter(options, memory if memory is not None else TokenMemory(), PICTURE)


def test_n_grams_that_begin_with_a_suffix_of_two_tokens_are_continued() -> None:
    found = drafted(racer(), [1, 2, 3, 4, *REST, 2, 3])
    assert found == [tuple([4, *REST][:n]) for n in range(1, 9)], "to the end of the 10-gram"
    assert drafted(racer(), [1, 2, 3, 4, *REST, 3]) == []
    assert drafted(racer(), [1, 2, 3, 4, 2, 3]) == [], "no 10-gram is complete"


def test_the_commonest_continuations_are_taken_first() -> None:
    text = [*[1, 2, 3, *REST] * 2, 1, 2, 4, *REST]
    assert drafted(racer(nodes=2), [*text, 1, 2]) == [(3,), (3, 40)]
    both = drafted(racer(), [*text, 1, 2])
    assert both.index((3,)) < both.index((4,))


def test_all_matching_suffixes_share_one_tree() -> None:
    text = [1, 2, 3, 5, *REST, 9, 2, 3, 6, *REST, 1, 2, 3]
    found = drafted(racer(), text)
    assert {(5,), (6,), (5, 40), (6, 40)} <= set(found)
    assert len(set(found)) == len(found)


def test_breadths_of_the_recycled_tree() -> None:
    memory = TokenMemory()
    for token in range(8):
        memory.store(token, Prediction(list(range(8)), [0.1] * 8, 0.0))
    found = drafted(racer(memory, nodes=1000), [0], max_depth=3)
    children = Counter(path[:-1] for path in found)
    assert children[()] == 8
    assert [children[rank,] for rank in range(8)] == [4, 2, 1, 1, 1, 1, 1, 1]
    assert [children[0, rank] for rank in range(4)] == [4, 2, 1, 1]
    assert [children[1, rank] for rank in range(2)] == [2, 1]


def test_recycled_predictions_get_what_retrieval_left_of_the_budget() -> None:
    memory = TokenMemory()
    memory.store(3, Prediction([60, 61, 4], [0.4, 0.3, 0.2], 0.5))
    text = [1, 2, 3, 4, *REST, 1, 2, 3]
    retrieved = drafted(racer(), text)
    assert len(retrieved) == 8
    assert drafted(racer(memory, nodes=8), text) == retrieved
    assert drafted(racer(memory, nodes=9), text) == [*retrieved, (60,)]
    assert drafted(racer(memory, nodes=63), text) == [*retrieved, (60,), (61,)]


def test_predictions_inside_the_prompt_are_recycled() -> None:
    drafter = racer(k=2)
    assert drafter.seeds
    drafter.start([1, 2, 90, 3])
    rows = [(5, 0.5), (6, 0.4)], [(7, 0.5), (8, 0.4)]
    drafter.seed([0, 1], predicted(*rows))
    drafter.observe([1])
    assert paths(drafter.propose(1)) == {(5,): "recycled", (6,): "recycled"}
    drafter.observe([2])
    assert paths(drafter.propose(1)).keys() == {(7,), (8,)}


def test_every_drafted_token_gets_its_newest_prediction() -> None:
    drafter = racer(k=2)
    drafted(drafter, [1, 2, 3, 4, *REST, 2, 3], max_depth=1)
    drafter.learn([0], predicted([(60, 0.5), (61, 0.4)], [(62, 0.5), (63, 0.4)]))
    assert drafted(drafter, [4], max_depth=1) == [(62,), (63,)]
    assert drafted(drafter, [3], max_depth=1) == [(60,), (61,)]


def test_n_grams_of_earlier_requests_are_retrieved() -> None:
    drafter = racer()
    drafted(drafter, [1, 2, 3, 4, *REST])
    assert (4, 40) in drafted(drafter, [8, 2, 3])


def test_pictures_are_neither_drafted_nor_matched() -> None:
    text = [1, 2, 3, 90, *REST, 2, 3]
    assert drafted(racer(), text) == []
    assert drafted(racer(), [1, 2, 3, 4, *REST, 2, 90, 3]) == []
    memory = TokenMemory()
    memory.store(3, Prediction([90, 4], [0.5, 0.3], 0.5))
    assert drafted(racer(memory), [3]) == [(4,)]
