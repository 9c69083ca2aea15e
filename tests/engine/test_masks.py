"""A node sees what is committed, its ancestors and itself, and in a window only what is near."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels import ROWS_STEP
from engine.masks import COLUMNS_STEP, MasksByKey, TreeMasks
from engine.tree import DraftTree

WINDOW = 4


def config_of(layer_types: list[str] | None, window: int | None, group: int) -> Any:
    return SimpleNamespace(
        layer_types=layer_types,
        sliding_window=window,
        num_attention_heads=2 * group,
        num_key_value_heads=2,
    )


def masks_of(layer_types: list[str] | None, window: int | None, group: int = 1) -> TreeMasks:
    config = config_of(layer_types, window, group)
    return TreeMasks(config, torch.float32, torch.device("cpu"))


def tree_of(*parents: int) -> DraftTree:
    tree = DraftTree([0])
    for token, parent in enumerate(parents):
        tree.add(token, parent, 0, 0.5)
    return tree


def seen(tree: DraftTree, start: int, extent: int, window: int | None = None) -> list[str]:
    """A line a node: x where it sees a slot."""
    lines = []
    for node, depth in enumerate(tree.depths):
        line = ["."] * extent
        for slot in range(start):
            line[slot] = "x" if window is None or start + depth - slot < window else "."
        at = node
        while at >= 0:
            near = window is None or depth - tree.depths[at] < window
            line[start + at] = "x" if near else "."
            at = tree.parents[at]
        lines.append("".join(line))
    return lines


def drawn(mask: object) -> list[str]:
    assert isinstance(mask, Tensor)
    assert mask.shape[:2] == (1, 1)
    return ["".join("x" if value == 0 else "." for value in row) for row in mask[0, 0].tolist()]


def test_a_mask_drawn_by_hand() -> None:
    mask = masks_of(None, None).of(tree_of(0, 0, 1), [0, 1, 3, 2], start=2, extent=8)
    assert drawn(mask) == ["xxx.....", "xxxx....", "xxx..x..", "xxxxx..."]


PASSES = [
    (tree_of(), 5, 6),
    (tree_of(0, 0, 1, 3, 4, 5), 6, 13),
    (tree_of(0, 1), 9, 16),
    (tree_of(), 10, 11),
    (tree_of(0, 0, 0, 2), 3, 9),  # another, shorter request
    (tree_of(0), COLUMNS_STEP + 20, COLUMNS_STEP + 22),
    (tree_of(*range(80)), COLUMNS_STEP + 21, COLUMNS_STEP + 200),
    (tree_of(0), 2, 4),
]


@pytest.mark.parametrize("group", [1, 3])
def test_pass_after_pass_whatever_was_in_the_buffers_before(group: int) -> None:
    masks = masks_of(["full_attention", "sliding_attention"], WINDOW, group)
    for tree, start, extent in PASSES:
        both = masks.of(tree, range(len(tree)), start, extent)
        heads = group if len(tree) > 1 else 1
        assert isinstance(both, dict)
        assert drawn(both["full_attention"]) == heads * seen(tree, start, extent)
        assert drawn(both["sliding_attention"]) == heads * seen(tree, start, extent, WINDOW)


@pytest.mark.parametrize("layer_types", [None, ["sliding_attention"]])
def test_a_model_with_one_layer_type_gets_one_mask(layer_types: list[str] | None) -> None:
    mask = masks_of(layer_types, WINDOW).of(tree_of(0), [0, 1], start=9, extent=11)
    assert drawn(mask) == seen(tree_of(0), 9, 11, WINDOW)


def test_buffers_stay_where_they_are() -> None:
    masks = masks_of(None, None)
    first = masks.of(tree_of(0, 0), range(3), start=4, extent=64)
    later = masks.of(tree_of(0, 1), range(3), start=6, extent=64)
    assert isinstance(first, Tensor)
    assert isinstance(later, Tensor)
    assert first.data_ptr() == later.data_ptr()


@given(st.data())
def test_masks_by_key_are_the_same_turned_whatever_was_asked_before(data: st.DataObject) -> None:
    kinds = data.draw(st.sampled_from([None, ["full_attention", "sliding_attention"]]))
    window = data.draw(st.sampled_from([None, WINDOW]))
    group = data.draw(st.integers(1, 3))
    by_key = MasksByKey(config_of(kinds, window, group))
    for _ in range(data.draw(st.integers(1, 6))):
        nodes = data.draw(st.integers(1, 9))
        tree = tree_of(*(data.draw(st.integers(0, node)) for node in range(nodes - 1)))
        start = data.draw(st.integers(0, 300))
        extent = start + nodes + data.draw(st.integers(0, 5))
        # With a row for each head, of a root alone, too.
        rows = masks_of(kinds, window).of(tree, range(nodes), start, extent)
        turned = by_key.of(tree, range(nodes), start, extent)
        expected, found = ({"": it} if isinstance(it, Tensor) else it for it in (rows, turned))
        assert expected.keys() == found.keys()
        for kind, mask in found.items():
            assert mask.shape == (1, extent, 1, -(-group * nodes // ROWS_STEP) * ROWS_STEP)
            assert mask.is_contiguous()
            theirs = expected[kind][0, 0].repeat(group, 1)
            assert torch.equal(mask[0, :, 0, : group * nodes].T, theirs)
