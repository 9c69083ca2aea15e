"""Packed layers compute what they did, and in bfloat16 the same for a row whatever is beside it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from engine import packing
from engine.attention import KEYS_AT_ONCE
from engine.drafters.registry import Method
from engine.events import Finished
from engine.families import FAMILIES
from engine.loading import Dtype, LoadedModel, load_model
from engine.operators import unpacked
from engine.options import DrafterOptions
from engine.packing import (
    ALIGNED,
    SAME_ROWS,
    PackedLinear,
    PackedWeights,
    fast_bfloat16,
    pack,
    parameter_count,
)
from engine.prompts import EncodedPrompt
from engine.session import Request, Session, SessionOptions
from engine.target import Target
from engine.tree import DraftTree
from tests.engine.test_target import check_sabotaged, path_to, tree_of
from tests.zoo import ANSWER, Zoo, answers, conversations, session

in_bfloat16 = pytest.mark.skipif(not fast_bfloat16(), reason="this CPU computes in float32")
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=in_bfloat16)]
)


def layer(
    out: int = 576,
    bias: bool = False,
    features: int = 96,
    dtype: torch.dtype = torch.bfloat16,
) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(features, out, bias=bias, dtype=dtype).requires_grad_(False)


def packed(*layers: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    return PackedWeights(layers).product


@DTYPES
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_the_layers(bias: bool, dtype: torch.dtype) -> None:
    rows = torch.randn(1, 5, 96).to(dtype)
    found = packed(layer(bias=bias, dtype=dtype))(rows)
    assert found.shape == (1, 5, 576)
    close = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, layer(bias=bias, dtype=dtype)(rows), rtol=close, atol=close)


@in_bfloat16
@pytest.mark.parametrize(
    ("out", "features"), [(192, 96), (576, 96), (1536, 96), (576, 1536), (896, 4864), (2048, 5504)]
)
def test_a_row_is_the_same_bits_among_any_others(out: int, features: int) -> None:
    product = packed(layer(out, features=features))
    rows = torch.randn(SAME_ROWS, features).bfloat16()
    alone = torch.cat([product(row[None]) for row in rows])
    for n in range(2, SAME_ROWS + 1):
        assert torch.equal(product(rows[:n].clone()), alone[:n])


@DTYPES
def test_layers_on_one_input_share_a_product(dtype: torch.dtype) -> None:
    weights = PackedWeights([layer(192, dtype=dtype), layer(576, dtype=dtype)])
    rows, others = torch.randn(2, 1, 3, 96).to(dtype)
    product = weights.product(rows).split_with_sizes([192, 576], -1)
    for _ in range(2):
        assert torch.equal(weights.part(0, rows), product[0])
        assert torch.equal(weights.part(1, rows), product[1])
    weights.part(0, others)
    assert torch.equal(weights.part(1, rows), product[1])


@in_bfloat16
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_model_in_bfloat16_on_a_cpu_is_packed(zoo: Zoo, family: str) -> None:
    model = load_model(str(zoo.folder_of(family, None)), "cpu", "bfloat16").model
    decoder = [type(module) for module in model.get_decoder().modules()]
    assert PackedLinear in decoder
    assert nn.Linear not in decoder
    assert isinstance(model.get_output_embeddings(), PackedLinear)


@in_bfloat16
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_packed_model_gives_the_logits_of_the_model(zoo: Zoo, family: str) -> None:
    folder = str(zoo.folder_of(family, None))
    loaded = load_model(folder, "cpu", "bfloat16", spare=True)
    prompt = loaded.encoder.encode(conversations(loaded.family.vision)[0])
    packed = Target(loaded.model, loaded.family)
    first, tree = packed.prefill(prompt, room=16), tree_of(6, 90)
    with unpacked(loaded.model):
        target = Target(loaded.model, loaded.family)
        scale = float(first.abs().max())
        torch.testing.assert_close(first, target.prefill(prompt, room=16), rtol=0, atol=0.1 * scale)
        expected = target.verify(tree)
    torch.testing.assert_close(packed.verify(tree), expected, rtol=0, atol=0.1 * scale)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_model_that_is_packed_in_float32_gives_the_same_answers(zoo: Zoo, family: str) -> None:
    loaded = zoo.load(family)
    pack(loaded.model)
    expected = zoo.answers(family, torch.float32, None)
    for seed, messages in enumerate(conversations(loaded.family.vision)):
        check_sabotaged(loaded, loaded.encoder.encode(messages), expected[seed], ANSWER, seed)


def is_packed(model: Any) -> bool:
    return any(isinstance(module, PackedLinear) for module in model.modules())


def test_a_small_model_is_not_worth_a_trial(zoo: Zoo) -> None:
    assert not is_packed(zoo.load("llama").model)


@pytest.mark.parametrize("slow", [nn.Linear, PackedWeights])
def test_in_float32_a_trial_tells_whether_weights_are_laid_out(
    zoo: Zoo, slow: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def slowly(self: Any, rows: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += 1
        return product(self, rows)  # type: ignore[no-any-return]

    name = "forward" if slow is nn.Linear else "product"
    product = getattr(slow, name)
    with monkeypatch.context() as patch:
        patch.setattr(slow, name, slowly)
        patch.setattr(packing, "perf_counter", lambda: now)
        patch.setattr(packing, "TRIED_LEAST", 0)
        loaded = zoo.load("llama")
    assert is_packed(loaded.model)
    laid_out: list[torch.Tensor] = []
    reorder = torch.ops.mkldnn._reorder_linear_weight

    def noted(weight: torch.Tensor, rows: int) -> torch.Tensor:
        laid_out.append(weight)
        return reorder(weight, rows)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", noted)
    expected = zoo.answers("llama", torch.float32, None)
    assert answers(session(loaded), vision=False) == expected
    assert bool(laid_out) == (slow is nn.Linear)


def test_in_float32_many_nodes_are_as_good_as_few(zoo: Zoo) -> None:
    loaded = zoo.load("llama")
    pack(loaded.model)
    assert Target(loaded.model, loaded.family).same_nodes is None


@in_bfloat16
def test_a_spare_comes_back_for_a_while(zoo: Zoo) -> None:
    model = load_model(str(zoo.folder_of("llama", None)), "cpu", "bfloat16", spare=True).model
    packed = {name for name, it in model.named_modules() if isinstance(it, PackedLinear)}
    with unpacked(model):
        assert {type(model.get_submodule(name)) for name in packed} == {nn.Linear}
    assert {type(model.get_submodule(name)) for name in packed} == {PackedLinear}


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_5_vl"])
def test_packed_weights_are_counted_once(zoo: Zoo, family: str) -> None:
    model = zoo.load(family).model
    before = parameter_count(model)
    assert before == model.num_parameters()
    pack(model)
    assert parameter_count(model) == before


def test_embeddings_stay_tied_to_the_head(zoo: Zoo) -> None:
    model = zoo.load("llama").model
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    head.weight = embeddings.weight
    buffer = torch.empty(head.weight.numel() + 1)
    head.weight.data = buffer[1:].view(head.weight.shape).copy_(head.weight.data)
    pack(model, spare=True)
    original = model.get_output_embeddings().original
    assert original.weight.data_ptr() == embeddings.weight.data_ptr()
    assert original.weight.data_ptr() % ALIGNED == 0


def test_without_a_spare_the_weights_are_held_once(zoo: Zoo) -> None:
    model = load_model(str(zoo.folder_of("llama", None)), "cpu", "float32").model
    model = model.bfloat16()
    before = sum(weight.numel() for weight in model.parameters())
    pack(model)
    kept = sum(weight.numel() for weight in model.parameters())
    assert kept <= before / 2


def bushy(rng: Random) -> DraftTree:
    tree = DraftTree([rng.randrange(10, 90)])
    for _ in range(SAME_ROWS - 1):
        tree.add(rng.randrange(10, 90), rng.randrange(max(len(tree) - 6, 0), len(tree)), 0, 0.5)
    return tree


def chain(tokens: list[int]) -> DraftTree:
    tree = DraftTree(tokens[:1])
    for token in tokens[1:]:
        tree.add(token, len(tree) - 1, 0, 0.5)
    return tree


def exact_paths(target: Target, tree: DraftTree) -> list[list[int]]:
    """Paths to some nodes of the tree that was verified last: those that could be committed."""
    paths = [path_to(tree, node) for node in range(0, len(tree), 5)]
    return [path for path in paths if target.exact(path) == path]


@in_bfloat16
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_nodes_have_the_bits_that_they_would_have_without_other_branches(
    zoo: Zoo, family: str
) -> None:
    loaded = load_model(str(zoo.folder_of(family, None)), "cpu", "bfloat16")
    target, rng = Target(loaded.model, loaded.family), Random(0)
    assert target.same_nodes == SAME_ROWS
    same: list[bool] = []
    for messages in conversations(loaded.family.vision):
        target.prefill(loaded.encoder.encode(messages), room=0)
        tree = bushy(rng)
        together = target.verify(tree)
        for path in exact_paths(target, tree):
            alone = target.verify(chain([tree.tokens[node] for node in path]))[-1]
            same.append(torch.equal(alone, together[path[-1]]))
    nearly_all = torch.cpu._is_amx_tile_supported()  # elsewhere it is all
    assert sum(same) >= (0.8 if nearly_all else 1) * len(same)


def check_bits(target: Target, loaded: LoadedModel) -> None:
    """Every node has the bits that it would have without other branches."""
    rng = Random(0)
    for messages in conversations(loaded.family.vision):
        target.prefill(loaded.encoder.encode(messages), room=0)
        tree = bushy(rng)
        together = target.verify(tree)
        for path in (path_to(tree, node) for node in range(0, len(tree), 5)):
            assert target.exact(path) == path
            alone = target.verify(chain([tree.tokens[node] for node in path]))[-1]
            assert torch.equal(alone, together[path[-1]])


@in_bfloat16
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_with_operators_all_nodes_have_them(zoo: Zoo, family: str) -> None:
    loaded = load_model(str(zoo.folder_of(family, None)), "cpu", "bfloat16")
    target = Target(loaded.model, loaded.family)
    target.use_operators()
    check_bits(target, loaded)


@in_bfloat16
@pytest.mark.usefixtures("compiler")
def test_operators_may_come_after_passes_without(zoo: Zoo) -> None:
    loaded = load_model(str(zoo.folder_of("llama", None)), "cpu", "bfloat16")
    target, tree = Target(loaded.model, loaded.family), tree_of(6, 90)
    target.prefill(loaded.encoder.encode(conversations(vision=False)[0]), room=16)
    before = target.verify(tree)
    target.use_operators()
    scale = float(before.abs().max())
    torch.testing.assert_close(target.verify(tree), before, rtol=0, atol=0.05 * scale)
    check_bits(target, loaded)


BRANCHED = DraftTree([10, 11, 12, 13], [-1, 0, 0, 2], [0, 1, 1, 2], [-1, 0, 0, 0], [1.0] * 4)
"""A second child with a child of its own: their keys stand a vector further than they would."""


@pytest.mark.parametrize(
    ("committed", "path", "exact"),
    [
        (420, [0, 2, 3], [0, 2, 3]),
        (KEYS_AT_ONCE - 10, [0, 2, 3], [0]),
        (KEYS_AT_ONCE - 10, [0, 1], [0, 1]),
        (KEYS_AT_ONCE - 34, [0, 2, 3], [0, 2]),
        (KEYS_AT_ONCE - 1, [0, 2, 3], [0, 2, 3]),
    ],
)
@DTYPES
def test_in_half_precision_a_path_ends_where_its_sums_would_be_parted_otherwise(
    zoo: Zoo, dtype: torch.dtype, committed: int, path: list[int], exact: list[int]
) -> None:
    name: Dtype = "float32" if dtype == torch.float32 else "bfloat16"
    loaded = load_model(str(zoo.folder_of("llama", None)), "cpu", name)
    target = Target(loaded.model, loaded.family)
    target.prefill(EncodedPrompt(torch.full((1, committed), 20), {}, 0, ""), room=64)
    target.verify(BRANCHED)
    assert target.exact(path) == (path if dtype == torch.float32 else exact)


@in_bfloat16
@pytest.mark.parametrize("method", ["recap", "racer", "suffix"])
def test_answers_in_bfloat16_are_plain_decoding_s(zoo: Zoo, method: Method) -> None:
    loaded = load_model(str(zoo.folder_of("llama", None)), "cpu", "bfloat16")
    options = SessionOptions(memory=False, drafter=DrafterOptions(nodes=SAME_ROWS - 1))
    for messages in conversations(vision=False):
        request = Request(messages, max_tokens=60)
        plain, ours = (
            list(Session(loaded, replace(options, method=each)).generate(request))[-1]
            for each in ("plain", method)
        )
        assert isinstance(plain, Finished)
        assert isinstance(ours, Finished)
        assert ours.token_ids == plain.token_ids


@in_bfloat16
def test_a_size_left_to_recap_keeps_answers_plain(zoo: Zoo) -> None:
    loaded = load_model(str(zoo.folder_of("llama", None)), "cpu", "bfloat16")
    session = Session(loaded, SessionOptions(memory=False))
    assert session.fitted("recap", DrafterOptions()).nodes == SAME_ROWS - 1
    chosen = DrafterOptions(nodes=64, adaptive=False)
    assert session.fitted("recap", chosen) == chosen
    assert session.fitted("suffix", DrafterOptions()) == DrafterOptions()
