"""Passes of few shapes compute what passes of exact shapes compute."""

import pytest
import torch

from engine.families import FAMILIES
from engine.kv_cache import TreeCache
from engine.packing import SAME_ROWS
from engine.passes import BIT_BY_BIT, USUAL, PassShapes, VerifyPasses
from engine.target import Target
from engine.tree import LANES, DraftTree
from tests.engine.test_target import check_sabotaged, tree_of
from tests.zoo import ANSWER, Zoo, conversations

FEW = PassShapes(nodes=(1, 4, 16), extent=64)


def test_trees_are_padded_to_the_next_size() -> None:
    assert [FEW.padded(n) for n in (1, 2, 4, 5, 16, 17, 40)] == [1, 4, 4, 16, 16, 32, 48]
    assert [FEW.keys(n) for n in (1, 64, 65)] == [64, 64, 128]


def test_without_sizes_only_keys_are_padded() -> None:
    assert [USUAL.padded(n) for n in (1, 7, 100)] == [1, 7, 100]
    assert [USUAL.keys(n) for n in (77, 96)] == [96, 96]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_padding_changes_no_answer(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    expected = zoo.answers(family, torch.float32, None)
    for seed, messages in enumerate(conversations(loaded.family.vision)):
        prompt = loaded.encoder.encode(messages)
        check_sabotaged(loaded, prompt, expected[seed], ANSWER, seed, FEW)


def test_nothing_of_the_padding_is_given_back(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    prompt = loaded.encoder.encode(conversations(vision=False)[0])
    exact, padded = Target(loaded.model, loaded.family), Target(loaded.model, loaded.family, FEW)
    exact.prefill(prompt, room=4)
    padded.prefill(prompt, room=4)
    tree = tree_of(10, 90)
    logits = padded.verify(tree)
    assert padded.padded(len(tree)) == 16 > len(tree) == logits.shape[0]
    torch.testing.assert_close(logits, exact.verify(tree), rtol=0, atol=1e-4)


def test_keys_stand_in_lanes_where_products_keep_a_row_s_bits_and_else_side_by_side(
    zoo: Zoo,
) -> None:
    passes = VerifyPasses(
        zoo.loaded("llama", torch.float32, None).model,
        False,
        lambda ids, *_: (torch.empty(ids.shape[1], 1),) * 2,
        BIT_BY_BIT,
    )
    for children, last in ((SAME_ROWS - 1, (SAME_ROWS - 2) * LANES + 1), (SAME_ROWS, SAME_ROWS)):
        tree = DraftTree([1])
        for token in range(children):
            tree.add(token, 0, 0, 0.5)
        passes.run(tree, TreeCache(1, 0), 0)
        assert passes.places[-1] == last
