"""Operators in C++: attention by the textbook, with the same bits for a query in any company."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.codecache import CppCodeCache

from engine import kernels
from engine.compiled import require_compiler
from engine.errors import UncompilableModel, UsageError
from engine.kv_cache import TreeCache
from engine.packing import PackedWeights

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _built() -> None:
    """The operators, where there is a compiler."""
    try:
        require_compiler(torch.device("cpu"))
    except UsageError as error:
        pytest.skip(str(error))
    kernels.load()


def states(
    heads: int, kv_heads: int, n: int, keys: int, dims: tuple[int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries as layers have them, and a cache's keys and values with room behind them."""
    random = torch.Generator().manual_seed(n + keys)
    query = torch.randn(1, n, heads, dims[0], generator=random).to(dtype).transpose(1, 2)
    key, value = (
        torch.randn(1, kv_heads, keys + 5, dim, generator=random).to(dtype) for dim in dims
    )
    return query, key, value


def hidden(heads: int, n: int, keys: int) -> Tensor:
    """[1, 1, heads * n, keys], additive; each node of a tree sees about half of the keys."""
    random = torch.Generator().manual_seed(keys)
    mask = torch.zeros(n, keys).masked_fill_(
        torch.rand(n, keys, generator=random) < 0.5, -torch.inf
    )
    mask[:, 0] = 0
    return mask.repeat(heads, 1)[None, None]


def attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, softcap: float | None = None
) -> Tensor:
    result: Tensor = torch.ops.recap.attend_by_key(
        query, key, value, kernels.by_key(mask), 0.3, softcap
    )
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "keys", "dims"),
    [
        (4, 4, 1, 1, (8, 8)),
        (6, 2, 5, 40, (64, 64)),
        (7, 1, 9, 67, (20, 20)),
        (2, 1, 33, 130, (80, 48)),
    ],
)
def test_attention_is_the_textbook_s(
    dtype: torch.dtype,
    softcap: float | None,
    heads: int,
    kv_heads: int,
    n: int,
    keys: int,
    dims: tuple[int, int],
) -> None:
    query, key, value = states(heads, kv_heads, n, keys, dims, dtype)
    mask = hidden(heads // kv_heads, n, keys)
    output = attended(query, key, value, mask, softcap)
    repeated = [
        it[:, :, :keys].double().repeat_interleave(heads // kv_heads, 1) for it in (key, value)
    ]
    products = 0.3 * query.double() @ repeated[0].mT
    if softcap is not None:
        products = softcap * (products / softcap).tanh()
    weights = (products + mask[:, :, :n].double()).softmax(-1)
    expected = (weights @ repeated[1]).transpose(1, 2)
    assert output.dtype == dtype
    assert output.is_contiguous()
    tolerance = max(2 * torch.finfo(dtype).eps, 5e-6)
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_query_has_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, softcap: float | None
) -> None:
    query, key, value = states(6, 2, 40, 200, (64, 64), dtype)
    together = attended(query, key, value, hidden(3, 40, 200), softcap)
    for n in (1, 2, 5, 6, 17):
        few = hidden(1, 40, 200)[:, :, :n].repeat(1, 1, 3, 1)
        assert torch.equal(attended(query[:, :, :n], key, value, few, softcap), together[:, :n])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_whose_numbers_are_not_side_by_side_are_taken_too(dtype: torch.dtype) -> None:
    query, key, value = states(4, 2, 6, 30, (64, 64), dtype)
    scattered = query.transpose(2, 3).contiguous().transpose(2, 3)
    mask = hidden(2, 6, 30)
    expected = attended(query, key, value, mask)
    assert torch.equal(attended(scattered, key, value, mask), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gap", [1, 7, 31, 64])
def test_a_query_has_the_same_bits_with_keys_that_it_does_not_see_between_and_behind(
    dtype: torch.dtype, gap: int
) -> None:
    query, key, value = states(2, 1, 4, 90, (64, 64), dtype)
    seen = torch.tensor([*range(60), *range(60 + gap, 90 + gap)])
    keys, values = (
        it.new_full((1, 1, 200, 64), 1000).index_copy_(2, seen, it[:, :, :90])
        for it in (key, value)
    )
    apart = torch.full((1, 1, 8, 200), -torch.inf).index_fill_(3, seen, 0)
    expected = attended(query, key, value, torch.zeros(1, 1, 8, 90))
    assert torch.equal(attended(query, keys, values, apart), expected)


def test_masks_are_turned_and_have_rows_for_whole_vectors() -> None:
    mask = hidden(3, 7, 11).bfloat16()
    turned = kernels.by_key(mask)
    assert turned.shape == (1, 11, 1, 32)
    assert turned.dtype == torch.float32
    assert torch.equal(turned[0, :, 0, :21].T, mask[0, 0].float())


def test_a_mask_with_too_few_rows_is_refused() -> None:
    with pytest.raises(RuntimeError):
        torch.ops.recap.attend_by_key(
            *states(4, 4, 3, 8, (8, 8), torch.float32), torch.zeros(1, 8, 1, 3), 1.0, None
        )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_a_pass_writes_where_its_slots_say(dtype: torch.dtype) -> None:
    cache = TreeCache(layers=2, capacity=0)
    cache.reserve(9)
    random = torch.Generator().manual_seed(0)
    # Heads behind nodes, as layers have them; and in no order that a copy could follow.
    first = torch.randn(1, 4, 3, 6, generator=random).to(dtype).transpose(1, 2)
    second = torch.randn(1, 3, 6, 4, generator=random).to(dtype).transpose(2, 3)
    cache.slots = torch.tensor([5, 0, 7, 8])
    cache.update(second, first, 0)
    keys, values = cache.update(first, second, 1)
    assert keys.shape == (1, 3, 256, 6)
    for buffer, written in ((keys, first), (values, second)):
        assert torch.equal(buffer[:, :, cache.slots], written)
        assert int(buffer.count_nonzero()) == written.numel()


def test_a_slot_that_is_not_there_is_refused() -> None:
    cache = TreeCache(layers=1, capacity=0)
    cache.reserve(2)
    cache.slots = torch.tensor([256])
    with pytest.raises(RuntimeError):
        cache.update(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), 0)


@pytest.fixture
def layers() -> list[nn.Linear]:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("no oneDNN")
    random = torch.Generator().manual_seed(0)
    made = [nn.Linear(24, size) for size in (5, 9)]
    for layer in made:
        for weights in layer.parameters():
            weights.data = torch.randn(weights.shape, generator=random)
    return made


@torch.inference_mode()
def test_packed_layers_are_multiplied_by_their_key(layers: list[nn.Linear]) -> None:
    weights = PackedWeights(layers)
    weights.hand_over()
    rows = torch.randn(1, 3, 24, generator=torch.Generator().manual_seed(1))
    product = torch.ops.recap.packed_linear(rows, weights.key, 14)
    assert torch.equal(product, weights.product(rows))
    key = weights.key
    weights.hand_over()
    assert weights.key == key


@torch.inference_mode()
def test_packed_layers_that_nobody_has_any_more_are_let_go(layers: list[nn.Linear]) -> None:
    weights = PackedWeights(layers)
    weights.hand_over()
    key = weights.key
    del weights
    gc.collect()
    with pytest.raises((RuntimeError, IndexError)):
        torch.ops.recap.packed_linear(torch.zeros(1, 3, 24), key, 14)


@pytest.mark.parametrize("failure", [OSError("no space left"), "compiler"])
def test_operators_that_cannot_be_built_are_told_of(
    monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    if failure == "compiler":
        from torch._inductor.exc import CppCompileError  # noqa: PLC0415

        failure = CppCompileError(["g++"], "error: no")

    def fail(_: str) -> None:
        raise failure

    monkeypatch.setattr(CppCodeCache, "load", fail)
    with pytest.raises(UncompilableModel, match="cannot be built"):
        kernels.load.__wrapped__()
