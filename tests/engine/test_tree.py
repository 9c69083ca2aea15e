"""Draft trees drawn by hand: who sees whom, and which path is accepted."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.tree import LANES, DraftTree, accepted_path, places, visibility


def drawn() -> DraftTree:
    """
    5 ─┬─ 7 ─┬─ 9 ── 4
       │     └─ 8
       └─ 6 ─── 9
    """
    tree = DraftTree([5])
    seven = tree.add(7, 0, 0, 0.6)
    six = tree.add(6, 0, 1, 0.3)
    nine = tree.add(9, seven, 2, 0.5)
    tree.add(8, seven, 3, 0.1)
    tree.add(9, six, 2, 0.2)
    tree.add(4, nine, 3, 0.4)
    return tree


def test_nodes_know_token_parent_depth_source_and_probability() -> None:
    tree = drawn()
    assert len(tree) == 7
    assert tree.tokens == [5, 7, 6, 9, 8, 9, 4]
    assert tree.parents == [-1, 0, 0, 1, 1, 2, 3]
    assert tree.depths == [0, 1, 1, 2, 2, 2, 3]
    assert tree.sources == [-1, 0, 1, 2, 3, 2, 3]
    assert tree.probabilities == [1.0, 0.6, 0.3, 0.5, 0.1, 0.2, 0.4]


def test_a_node_sees_itself_and_its_ancestors() -> None:
    seen = visibility(drawn().parents, range(7))
    assert [np.flatnonzero(row).tolist() for row in seen] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 1, 3],
        [0, 1, 4],
        [0, 2, 5],
        [0, 1, 3, 6],
    ]


def test_a_root_alone_sees_itself() -> None:
    assert visibility([-1], [0]).tolist() == [[True]]
    assert accepted_path(DraftTree([5]), [3]) == [0]


def test_the_path_goes_to_the_child_that_the_target_chose() -> None:
    #                      root 7  6  9  8  9  4
    assert accepted_path(drawn(), [7, 9, 0, 4, 0, 0, 1]) == [0, 1, 3, 6]
    assert accepted_path(drawn(), [7, 8, 0, 0, 3, 0, 0]) == [0, 1, 4]
    assert accepted_path(drawn(), [6, 0, 9, 0, 0, 2, 0]) == [0, 2, 5]


def test_the_path_ends_where_no_child_was_chosen() -> None:
    assert accepted_path(drawn(), [1, 9, 9, 4, 4, 4, 4]) == [0]
    # The choice after 6 is 8, which only 7 has as a child.
    assert accepted_path(drawn(), [6, 8, 8, 4, 4, 4, 4]) == [0, 2]


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tree = DraftTree([draw(st.integers(0, 3))])
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, len(tree) - 1))
        token = draw(st.integers(0, 3))
        if token not in _children(tree, parent):
            tree.add(token, parent, 0, 0.5)
    return tree


@given(trees(), st.data())
def test_the_accepted_path_is_the_walk_that_was_described(
    tree: DraftTree, data: st.DataObject
) -> None:
    choices = data.draw(st.lists(st.integers(0, 3), min_size=len(tree), max_size=len(tree)))
    walk, node = [0], _children(tree, 0).get(choices[0])
    while node is not None:
        walk.append(node)
        node = _children(tree, node).get(choices[node])
    assert accepted_path(tree, choices) == walk


@given(trees())
def test_what_a_node_sees_is_one_token_of_every_depth_above_it(tree: DraftTree) -> None:
    for node, row in enumerate(visibility(tree.parents, range(len(tree)))):
        seen = np.flatnonzero(row).tolist()
        assert [tree.depths[each] for each in seen] == list(range(tree.depths[node] + 1))
        assert all(tree.parents[child] == parent for parent, child in pairwise(seen))


def _children(tree: DraftTree, node: int) -> dict[int, int]:
    pairs = enumerate(zip(tree.tokens, tree.parents, strict=True))
    return {token: child for child, (token, parent) in pairs if parent == node}


def test_a_chain_stands_side_by_side_and_a_branch_in_lanes_of_its_own() -> None:
    assert places([-1, 0, 1, 2], LANES) == [0, 1, 2, 3]
    # 5, 7, 6, 9, 8, 9, 4: a second child has its depth's lane, one or more steps further on.
    assert places(drawn().parents, LANES) == [0, 1, 1 + LANES, 2, 2 + LANES, 2 + 2 * LANES, 3]


@given(st.lists(st.integers(0, 40), max_size=40))
def test_keys_stand_behind_their_parents_in_the_lane_of_their_depth(draws: list[int]) -> None:
    tree = DraftTree([0])
    for draw in draws:
        tree.add(0, draw % len(tree), 0, 0.5)
    found = places(tree.parents, LANES)
    assert len(set(found)) == len(tree)
    for place, parent, depth in zip(found, tree.parents, tree.depths, strict=True):
        assert place % LANES == depth % LANES
        assert parent < 0 or place > found[parent]
    assert places(tree.parents, 1) == list(range(len(tree)))
