"""The attention of decode passes, given to transformers through its `AttentionInterface`.

It differs from transformers' own `sdpa` in this: the query heads that share a key-value head are
folded into its rows, so that keys and values are not copied once for each of them; rows are taken
in parts or get company, where that keeps their bits; and products may be capped, as Gemma 2 asks
for, which transformers leaves to its `eager` attention. Any other forward without a tree mask
(prefill, vision towers) is transformers' own business.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from engine.kernels import ATTEND_BY_KEY, by_key

NAME = "recap_tree"
"""The name under which models are loaded with this attention."""

ROWS_AT_ONCE = 62
"""Queries of a head that a CPU gets at once in half precision: from 64 on PyTorch (2.13) may take
another way, with other roundings."""
COMPANY = {1: 3, 2: 2, 3: 1, 33: 3, 34: 2, 35: 1}
"""How many are added to so many queries. PyTorch takes 32 at a time; a lone one, and on some CPUs
up to three, with other roundings."""
KEYS_AT_ONCE = 512
"""Keys that PyTorch takes at a time on a CPU; what is left over is the last part."""
SUMMED_AT_ONCE = 192
"""Of these, keys that MKL, without AMX, sums at a time. Measured with PyTorch 2.13 on Zen 5."""
HALVED = range(SUMMED_AT_ONCE + 1, 2 * SUMMED_AT_ONCE)
"""Sizes of a last part that it sums in two halves instead."""


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of n queries over T keys under an additive mask.

    Args:
        query: [1, heads, n, head dim].
        key, value: [1, kv heads, T or more, head dim]; heads is a multiple of kv heads.
        attention_mask: [1, 1, heads a kv head * n, T], added to the scaled products, all queries of
            the first of these heads first; or one row for all. None, or boolean, outside decode
            passes. With operators in C++ as `engine.masks.MasksByKey` has it.
        scaling: factor of the products; None is 1 / sqrt(head dim).
        softcap: c in c * tanh(product / c), which bounds the scaled products; None does not.

    Returns:
        [1, n, heads, head dim] in the query's dtype, and None for the weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mask = attention_mask
    if mask is not None and mask.dtype != torch.bool and query.shape[0] == 1:
        attend: Callable[..., Tensor]
        if by_key(mask):
            attend = ATTEND_BY_KEY
        else:  # To find an operator takes PyTorch a few microseconds, in each layer.
            attend = torch.ops.recap.attend if torch.compiler.is_compiling() else _attend
        return attend(query, key, value, mask, scale, softcap), None
    if softcap is not None:
        return _capped(query, key, value, attention_mask, scale, softcap), None
    theirs: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )
    return theirs


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """`tree_attention` of a pass, which gets the cache's whole buffers."""
    _, heads, n, dim = query.shape
    kv_heads, length = key.shape[1], mask.shape[-1]
    key, value = key[:, :, :length], value[:, :, :length]
    if softcap is not None:
        return _capped(query, key, value, mask[:, :, :n], scale, softcap)
    folded = query.reshape(1, kv_heads, -1, dim)
    if query.device.type != "cpu" or query.dtype == torch.float32:
        output = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    else:
        output = _in_parts(folded, key, value, mask, scale)
    return output.reshape(1, heads, n, -1).transpose(1, 2).contiguous()


def _in_parts(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of [1, kv heads, rows, head dim], each row with the bits that it has among others.

    `mask` has one row for all, or one each.
    """
    rows = query.shape[2]
    company = COMPANY.get(rows % ROWS_AT_ONCE, 0)
    if company:
        query = F.pad(query, (0, 0, 0, company))
        if mask.shape[2] > 1:
            mask = F.pad(mask, (0, 0, 0, company))
    if rows + company <= ROWS_AT_ONCE:
        whole = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return whole[:, :, :rows]
    parts = [
        F.scaled_dot_product_attention(part, key, value, attn_mask=seen, scale=scale)
        for part, seen in zip(
            torch.split(query, ROWS_AT_ONCE, 2), torch.split(mask, ROWS_AT_ONCE, 2), strict=True
        )
    ]
    return torch.cat(parts, 2)[:, :, :rows]


def evenly_summed(keys: int) -> int:
    """So many keys, or more, that a row's sum over those it sees does not depend on how many.

    For half precision on a CPU.
    """
    left = keys % KEYS_AT_ONCE
    return keys - left + HALVED.stop if left in HALVED and _halves() else keys


def place_in_sum(key: int) -> tuple[int, int]:
    """In which part of a row's sums a key is, where there are as many as `evenly_summed` says.

    For half precision on a CPU: sums over the same terms in other parts have other roundings.
    """
    whole, left = divmod(key, KEYS_AT_ONCE)
    return whole, left // SUMMED_AT_ONCE if _halves() else 0


@cache
def _halves() -> bool:
    """Whether this CPU sums `HALVED` keys in halves; a few milliseconds."""
    random = torch.Generator().manual_seed(0)
    fewer, all_, seen = 224, HALVED.stop, 200
    mask = torch.full((1, 1, 1, all_), -torch.inf)
    mask[..., :seen] = 0
    for _ in range(8):
        query, key, value = torch.randn(3, 1, 8, all_, 64, generator=random).bfloat16()
        few, more = (
            F.scaled_dot_product_attention(
                query[:, :, :ROWS_AT_ONCE],
                key[:, :, :keys],
                value[:, :, :keys],
                attn_mask=mask[..., :keys],
            )
            for keys in (fewer, all_)
        )
        if not torch.equal(few, more):
            return True
    return False


def _shaped(query: Tensor, _: Tensor, value: Tensor, *__: object) -> Tensor:
    """What `_attend` returns, without its values."""
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Attention with bounded products, rounded as transformers' `eager` rounds it.

    `mask` is additive, or boolean with True where a key is seen, or None for a causal prefill.
    """
    batch, heads, n, dim = query.shape
    kv_heads, length = key.shape[1], key.shape[2]
    folded = query.reshape(batch, kv_heads, -1, n, dim)
    products = folded @ key.transpose(2, 3)[:, :, None] * scale
    products = softcap * torch.tanh(products / softcap)
    if mask is None:
        mask = torch.ones(n, length, dtype=torch.bool, device=query.device).tril(length - n)
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    products = products + (mask if mask.ndim == 2 else mask[:, :, None])
    weights = products.softmax(-1, dtype=torch.float32).to(query.dtype)
    output = (weights @ value[:, :, None]).view(batch, heads, n, value.shape[-1])
    return output.transpose(1, 2).contiguous()


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)

# An operator of its own: one step to a compiler, whatever the length of the text.
_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor mask, float scale, float? softcap)"
    " -> Tensor"
)
_LIBRARY.impl("attend", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("recap::attend", _shaped, lib=_LIBRARY)
