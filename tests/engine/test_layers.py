"""Decoder layers that are replaced compute what they did; others are left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from engine import kernels
from engine.attention import NAME as TREE_ATTENTION
from engine.families import FAMILIES
from engine.layers import KNOWN, FusedLayer
from engine.logits import predict
from engine.operators import give_to_operators, unpacked
from engine.packing import pack, parameter_count
from engine.prompts import EncodedPrompt
from engine.session import Session
from engine.target import Target
from tests.engine.test_packing import DTYPES, check_bits, in_bfloat16
from tests.engine.test_target import tree_of
from tests.models import random_model, text_sizes
from tests.zoo import Zoo, answers, conversations, session

OTHERS = {"gemma", "gemma2", "gemma3", "gemma3_text", "paligemma", "paligemma2"} | {
    *("glm4v", "phi3", "phi3_long")
}
"""Families whose layers are of another kind."""


@pytest.fixture(autouse=True)
def _built(compiler: None) -> None:
    kernels.load()


def fused(model: Any) -> list[str]:
    return [name for name, it in model.named_modules() if isinstance(it, FusedLayer)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_layers_of_the_usual_kind_are_fused_and_come_back(zoo: Zoo, family: str) -> None:
    model = zoo.load(family).model
    pack(model, spare=True)
    count, before = parameter_count(model), dict(model.named_modules())
    give_to_operators(model)
    layers = model.config.get_text_config().num_hidden_layers
    assert len(fused(model)) == (0 if family in OTHERS else layers)
    assert parameter_count(model) == count
    with unpacked(model):
        assert [*dict(model.named_modules())] == [*before]
        assert not any(isinstance(it, FusedLayer) for it in model.modules())
    again = fused(model)
    give_to_operators(model)  # which has nothing left to do
    assert fused(model) == again


@DTYPES
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - OTHERS))
@torch.inference_mode()
def test_a_pass_through_fused_layers_is_the_pass(
    zoo: Zoo, family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for whole in (True, False):
        loaded = zoo.load(family, dtype)
        pack(loaded.model, spare=True)
        if not whole:
            monkeypatch.setattr("engine.operators.fuse_layers", lambda _: None)
        target = Target(loaded.model, loaded.family)
        target.use_operators()
        assert bool(fused(loaded.model)) == whole
        passes = []
        for messages in conversations(loaded.family.vision):
            target.prefill(loaded.encoder.encode(messages), room=40)
            passes.append(target.verify(tree_of(12, 90)))
            target.keep([0, 1])
            passes.append(target.verify(tree_of(1, 90)))
        found.append(passes)
    for ours, theirs in zip(*found, strict=True):
        close = 1e-5 if dtype == torch.float32 else 0.02
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=close * scale)


@in_bfloat16
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "smolvlm", "mistral"])
def test_a_node_has_the_same_bits_in_any_company(zoo: Zoo, family: str) -> None:
    loaded = zoo.load(family, torch.bfloat16)
    pack(loaded.model)
    target = Target(loaded.model, loaded.family)
    target.use_operators()
    assert fused(loaded.model)
    check_bits(target, loaded)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - OTHERS))
def test_answers_through_fused_layers_are_those_of_transformers(zoo: Zoo, family: str) -> None:
    loaded = zoo.load(family)
    pack(loaded.model)
    ours: Session = session(loaded)
    expected = zoo.answers(family, torch.float32, None)
    assert answers(ours, loaded.family.vision) == expected
    assert fused(loaded.model)


@torch.inference_mode()
def test_threads_share_a_pass_and_do_nothing_twice() -> None:
    sizes = {**text_sizes(40_000), "hidden_size": 1536, "num_hidden_layers": 1}
    model = random_model(LlamaConfig(**sizes), [], seed=5)
    model.set_attn_implementation(TREE_ATTENTION)
    pack(model)
    target = Target(model, FAMILIES["llama"])
    target.use_operators()
    assert fused(model)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            target.prefill(EncodedPrompt(torch.tensor([[1, 2, 3]]), {}, 0, ""), room=32)
            predictions = predict(target.verify(tree_of(32, 90)), 8, target.hidden)
        finally:
            torch.set_num_threads(1)
        found.append([predictions.top_ids, predictions.top_probs, target.hidden.clone()])
    for alone, together in zip(*found, strict=True):
        assert bool((alone == together).all())


@DTYPES
@pytest.mark.parametrize(("dim", "hidden"), [(64, 96), (80, 160), (128, 128), (6, 24)])
@torch.inference_mode()
def test_heads_may_be_of_any_size_and_all_products_may_have_biases(
    dim: int, hidden: int, dtype: torch.dtype
) -> None:
    sizes = text_sizes(96) | {"hidden_size": hidden, "head_dim": dim}
    config = LlamaConfig(**sizes, attention_bias=True, mlp_bias=True)
    found = []
    for whole in (True, False):
        model = random_model(config, [], seed=3).to(dtype)
        model.set_attn_implementation(TREE_ATTENTION)
        pack(model)
        target = Target(model, FAMILIES["llama"])
        if whole:
            target.use_operators()
            assert len(fused(model)) == config.num_hidden_layers
        target.prefill(EncodedPrompt(torch.arange(20)[None] % 90, {}, 0, ""), room=90)
        found.append([target.verify(tree_of(nodes, 90)) for nodes in (1, 7, 70)])
    for ours, theirs in zip(*found, strict=True):
        close = 1e-5 if dtype == torch.float32 else 0.03
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=close * scale)


def gated_otherwise(layer: Any) -> None:
    layer.mlp.act_fn = nn.GELU()


def scaled_otherwise(layer: Any) -> None:
    layer.self_attn.forward = halved(layer.self_attn.forward)


def halved(forward: Callable[..., tuple[torch.Tensor, Any]]) -> Callable[..., Any]:
    def half(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        attended, weights = forward(*args, **kwargs)
        return attended / 2, weights

    return half


def turned_otherwise(layer: Any) -> None:
    layer.self_attn.forward = unturned(layer.self_attn.forward)


def unturned(forward: Callable[..., Any]) -> Callable[..., Any]:
    def still(*args: Any, **kwargs: Any) -> Any:
        cos, sin = kwargs["position_embeddings"]
        kwargs["position_embeddings"] = torch.ones_like(cos), torch.zeros_like(sin)
        return forward(*args, **kwargs)

    return still


def called_otherwise(layer: Any) -> None:
    layer.forward = lambda states: states


def told_more(layer: Any) -> None:
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: (forward(*args, **kwargs), None)


CHANGES = [gated_otherwise, scaled_otherwise, turned_otherwise, called_otherwise, told_more]


@DTYPES
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_computes_something_else_stays(
    zoo: Zoo, change: Callable[[Any], None], dtype: torch.dtype
) -> None:
    model = zoo.load("llama", dtype).model
    first, *others = (it for it in model.modules() if type(it).__name__ in KNOWN)
    change(first)
    pack(model)
    give_to_operators(model)
    assert model.get_decoder().layers[0] is first
    assert len(fused(model)) == len(others) > 0


def test_layers_whose_products_are_not_operators_stay(zoo: Zoo) -> None:
    model = zoo.load("llama").model
    give_to_operators(model)
    assert fused(model) == []
