"""Attention under a tree's mask equals the textbook formula, in every dtype and grouping."""

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from engine.attention import COMPANY, NAME, ROWS_AT_ONCE, evenly_summed, tree_attention
from engine.packing import fast_bfloat16
from engine.tree import LANES, visibility

PARENTS = [-1, 0, 0, 1, 1, 2]
COMMITTED = 7


class Layer(nn.Module):
    """What transformers' own attention asks of the module that calls it."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups


def states(heads: int, kv_heads: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(heads + n)
    shapes = ((heads, n), (kv_heads, COMMITTED + n), (kv_heads, COMMITTED + n))
    query, key, value = (
        torch.randn(1, *shape, 8, generator=random, dtype=torch.float64).to(dtype)
        for shape in shapes
    )
    return query, key, value


def tree_mask(n: int, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(n, COMMITTED + n, dtype=dtype)
    hidden = torch.from_numpy(~visibility(PARENTS[:n], range(n)))
    mask[:, COMMITTED:].masked_fill_(hidden, -torch.inf)
    return mask[None, None]


def for_heads(mask: Tensor, group: int) -> Tensor:
    """A tree's mask as a pass gives it to layers in which so many heads share a key-value head."""
    return mask if mask.shape[2] == 1 else mask.repeat(1, 1, group, 1)


def textbook(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """softmax(scale * Q K' + mask) V in float64; [1, n, heads, dim]."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.double().repeat_interleave(groups, 1) for each in (key, value))
    scores = scale * query.double() @ key.mT + mask.double()
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 2**-8),
        (torch.float16, 2**-10),
    ],
)
def test_it_is_the_textbook_s_attention(
    n: int, heads: int, kv_heads: int, dtype: torch.dtype, tolerance: float
) -> None:
    query, key, value = states(heads, kv_heads, n, dtype)
    mask = tree_mask(n, torch.promote_types(dtype, torch.float32))
    group = heads // kv_heads
    output, weights = tree_attention(
        Layer(group), query, key, value, for_heads(mask, group), scaling=0.3
    )
    assert output.dtype == dtype
    assert weights is None
    expected = textbook(query, key, value, mask, 0.3)
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_node_s_result_is_that_of_its_path_alone(dtype: torch.dtype) -> None:
    query, key, value = states(4, 2, 6, dtype)
    mask = tree_mask(6, torch.float32)
    together, _ = tree_attention(Layer(2), query, key, value, for_heads(mask, 2))
    path = [0, 1, 4]
    slots = [*range(COMMITTED), *(COMMITTED + node for node in path)]
    for node in path:
        seen = slots[: COMMITTED + path.index(node) + 1]
        alone, _ = tree_attention(
            Layer(2),
            query[:, :, node : node + 1],
            key[:, :, seen],
            value[:, :, seen],
            torch.zeros(1, 1, 1, len(seen)),
        )
        torch.testing.assert_close(together[:, node], alone[:, 0], rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()])
def test_a_forward_without_a_tree_s_mask_is_transformers_own(mask: Tensor | None) -> None:
    query, key, value = (torch.randn(1, heads, 6, 8) for heads in (4, 2, 2))
    ours, _ = tree_attention(Layer(2), query, key, value, mask)
    theirs, _ = sdpa_attention_forward(Layer(2), query, key, value, mask)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["tree", "boolean", "none"])
def test_products_are_capped_where_the_model_asks_for_it(dtype: torch.dtype, kind: str) -> None:
    query, key, value = states(4, 2, 6, dtype)
    tree = tree_mask(6, dtype)
    causal = torch.ones(6, COMMITTED + 6, dtype=torch.bool).tril(COMMITTED)[None, None]
    asked = {"tree": for_heads(tree, 2), "boolean": tree == 0, "none": None}[kind]
    output, _ = tree_attention(Layer(2), query, key, value, asked, scaling=0.9, softcap=0.5)
    scores = 0.9 * query.double() @ key.double().repeat_interleave(2, 1).mT
    seen = causal if kind == "none" else tree == 0
    scores = (0.5 * (scores / 0.5).tanh()).masked_fill(~seen, -torch.inf)
    expected = (scores.softmax(-1) @ value.double().repeat_interleave(2, 1)).transpose(1, 2)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-6)


keeps_bits = pytest.mark.skipif(
    not fast_bfloat16() or torch.cpu._is_amx_tile_supported(),
    reason="with AMX nearly always, without bfloat16 in hardware not at all",
)


@keeps_bits
@pytest.mark.parametrize("seen", [40, 150, 203, 300, 500, 717])
def test_a_row_has_the_same_bits_whatever_stands_beside_it_and_behind_what_it_sees(
    seen: int,
) -> None:
    random = torch.Generator().manual_seed(seen)
    query, key, value = torch.randn(3, 1, 2, 1200, 64, generator=random).bfloat16()
    mask = torch.full((1, 1, 1, 1200), -torch.inf)
    mask[..., :seen] = 0

    def attended(rows: int, keys: int) -> Tensor:
        seen_by_all = mask[..., : evenly_summed(keys)].expand(1, 1, rows, -1)
        return tree_attention(Layer(1), query[:, :, :rows], key, value, seen_by_all)[0]

    padded = -(-seen // 32) * 32
    usual = attended(ROWS_AT_ONCE, padded)
    for rows in (*COMPANY, 4, 17, 2 * ROWS_AT_ONCE + 1):
        assert torch.equal(attended(rows, padded)[:, :ROWS_AT_ONCE], usual[:, :rows])
    for keys in range(padded, padded + 320, 32):
        assert torch.equal(attended(ROWS_AT_ONCE, keys), usual)


@keeps_bits
def test_a_row_has_the_same_bits_where_a_key_stands_some_lanes_further_on() -> None:
    random = torch.Generator().manual_seed(0)
    for seen in range(20, 140, 3):  # another sum shows in one of some millions of numbers
        query, key, value = torch.randn(3, 1, 16, 192, 256, generator=random).bfloat16()
        outputs = []
        for place in (seen, seen + LANES):
            mask = torch.full((1, 1, ROWS_AT_ONCE, 192), -torch.inf)
            mask[..., :seen] = mask[..., place] = 0
            keys, values = (
                each.index_copy(2, torch.tensor([place]), each[:, :, -1:]) for each in (key, value)
            )
            rows = query[:, :, :ROWS_AT_ONCE]
            outputs.append(tree_attention(Layer(1), rows, keys, values, mask, scaling=0.4)[0])
        assert torch.equal(*outputs)


def test_models_find_it_by_name() -> None:
    assert AttentionInterface()[NAME] is tree_attention
