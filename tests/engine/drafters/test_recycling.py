"""What Token Recycling drafts from its matrix."""

from collections import Counter

import pytest

from engine.drafters.recycling import TokenRecyclingDrafter, template
from engine.memory.transitions import Prediction, TokenMemory
from engine.options import DrafterOptions
from tests.engine.drafters.drawn import PICTURE, drafted, paths, predicted


def ranks() -> list[tuple[int, ...]]:
    """The ranks on the way to each node of the template."""
    found: list[tuple[int, ...]] = [()]
    for parent, rank in template():
        found.append((*found[parent], rank))
    return found[1:]


def matrix(**rows: list[int]) -> TokenMemory:
    """`t3=[4, 5]`: after token 3 come 4 and 5, with decreasing probabilities."""
    memory = TokenMemory()
    for name, ids in rows.items():
        probs = [0.5 / 2**rank for rank in range(len(ids))]
        memory.store(int(name.removeprefix("t")), Prediction(ids, probs, 0.5))
    return memory


def drafter(memory: TokenMemory, nodes: int = 80, k: int = 8) -> TokenRecyclingDrafter:
    return TokenRecyclingDrafter(DrafterOptions(nodes=nodes, k=k), memory, PICTURE)


def test_the_published_tree() -> None:
    tree = ranks()
    assert Counter(map(len, tree)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert len(set(tree)) == 80
    assert {(7, 0), (0, 7, 0), (3, 0, 0, 0), (1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0)} <= set(tree)
    assert {(7, 1), (6, 0, 0), (1, 3, 0), (0, 0, 0, 0, 0, 2)}.isdisjoint(tree)


def test_better_ranks_come_before_worse_ones() -> None:
    tree = ranks()
    assert tree[:3] == [(0,), (0, 0), (0, 0, 0)]
    for at, path in enumerate(tree):
        if path[-1]:
            assert (*path[:-1], path[-1] - 1) in tree[:at]


@pytest.mark.parametrize("nodes", [0, 1, 4, 16, 40, 80, 100])
def test_a_smaller_tree_holds_the_best_nodes_that_can_be_filled(nodes: int) -> None:
    everything = matrix(**{f"t{token}": list(range(8)) for token in range(8)})
    assert drafted(drafter(everything, nodes), [0]) == ranks()[:nodes]
    best_only = matrix(t0=[1], t1=[2], t2=[3], t3=[0])
    chain = [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 0), (1, 2, 3, 0, 1), (1, 2, 3, 0, 1, 2)]
    assert drafted(drafter(best_only, nodes), [0]) == chain[:nodes]


def test_the_tree_is_filled_rank_by_rank_as_far_as_the_matrix_knows() -> None:
    memory = matrix(t3=[4, 5], t4=[6, 7], t6=[3])
    found = drafted(drafter(memory), [1, 2, 3])
    assert {(4,), (5,), (4, 6), (4, 7), (4, 6, 3), (4, 6, 3, 5), (4, 6, 3, 4, 6, 3)} <= set(found)
    assert (5, 6) not in found
    assert max(map(len, found)) == 6
    assert drafted(drafter(memory), [9]) == []


def test_a_tree_is_not_deeper_than_asked() -> None:
    memory = matrix(t3=[3, 4])
    assert drafted(drafter(memory), [3], max_depth=1) == [(3,), (4,)]
    assert drafted(drafter(memory), [3], max_depth=0) == []


def test_every_token_of_a_tree_gets_its_newest_prediction() -> None:
    memory = TokenMemory()
    recycling = drafter(memory, k=2)
    assert drafted(recycling, [3]) == []
    recycling.learn([0], predicted([(4, 0.6), (5, 0.3)]))
    recycling.observe([3])
    tree = recycling.propose(1)
    assert tree.tokens == [3, 4, 5]
    rows = [[(8, 0.6), (9, 0.3)], [(6, 0.6), (7, 0.3)], [(3, 0.6), (4, 0.3)]]
    recycling.learn([0], predicted(*rows))
    recycling.observe([3])
    assert paths(recycling.propose(1)) == {(8,): "recycled", (9,): "recycled"}
    recycling.observe([5])
    assert paths(recycling.propose(1)).keys() == {(3,), (4,)}, "rejected nodes teach too"


def test_the_matrix_outlives_requests() -> None:
    recycling = drafter(TokenMemory(), k=2)
    drafted(recycling, [3])
    recycling.learn([0], predicted([(4, 0.6), (5, 0.3)]))
    assert drafted(recycling, [9, 3]) == [(4,), (5,)]


def test_pictures_and_what_fills_a_row_up_are_not_drafted() -> None:
    memory = TokenMemory()
    memory.store(3, Prediction([90, 4, 4, -1], [0.5, 0.3, 0.0, 0.0], 0.5))
    assert drafted(drafter(memory), [3], max_depth=1) == [(4,)]
    recycling = drafter(memory, k=2)
    recycling.observe([90])  # a target may write one
    recycling.propose(9)
    recycling.learn([0], predicted([(4, 0.6), (5, 0.3)]))
    assert memory.recall(90) is None
