"""Norms that are replaced compute what they did; others are left alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from engine import kernels
from engine.families import FAMILIES
from engine.norms import FusedNorm, fuse_norms
from engine.operators import unpacked
from engine.packing import parameter_count
from engine.target import Target
from tests.zoo import Zoo


@pytest.fixture(autouse=True)
def _built(compiler: None) -> None:
    kernels.load()


class OneNorm(nn.Module):
    """A model whose language part is one module."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def get_decoder(self) -> nn.Module:
        return self


def norm_of(kind: Any, dims: int, dtype: torch.dtype) -> nn.Module:
    norm: nn.Module = kind(dims)
    random = torch.Generator().manual_seed(1)
    norm.weight = nn.Parameter(torch.randn(dims, generator=random), requires_grad=False)
    return norm.to(dtype)


@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize("dims", [16, 70, 576, 4096])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
@torch.inference_mode()
def test_a_fused_norm_is_the_norm(kind: type[nn.Module], dims: int, dtype: torch.dtype) -> None:
    norm = norm_of(kind, dims, dtype)
    model = OneNorm(norm)
    fuse_norms(model)
    assert isinstance(model.norm, FusedNorm)
    rows = 3 * torch.randn(2, 9, dims, generator=torch.Generator().manual_seed(2)).to(dtype)
    close = 1e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps  # rounded twice
    torch.testing.assert_close(model.norm(rows), norm(rows), rtol=close, atol=1e-6)
    together = model.norm(rows)
    assert torch.equal(model.norm(rows[1:, 4:5]), together[1:, 4:5])
    assert torch.equal(model.norm(rows.transpose(0, 1)), together.transpose(0, 1))


class Centred(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, hidden_states: Tensor) -> Tensor:
        normed: Tensor = super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))
        return normed


def layer_norm(dims: int) -> nn.Module:
    return nn.LayerNorm(dims, bias=False)


@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize("dims", [64, 4096])
@pytest.mark.parametrize("kind", [Centred, layer_norm, nn.LayerNorm])
def test_a_norm_that_computes_something_else_stays(
    kind: Any, dims: int, dtype: torch.dtype
) -> None:
    norm = norm_of(kind, dims, dtype)
    model = OneNorm(norm)
    fuse_norms(model)
    assert model.norm is norm


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_norms_of_a_family_s_language_part_are_fused_and_come_back(
    zoo: Zoo, family: str
) -> None:
    loaded = zoo.load(family)
    model = loaded.model
    count = parameter_count(model)
    Target(model, loaded.family).use_operators()
    fused = {name for name, it in model.named_modules() if isinstance(it, FusedNorm)}
    norms = {name for name, it in model.get_decoder().named_modules() if "RMSNorm" in str(type(it))}
    assert len(fused) == len(norms) > 0
    assert parameter_count(model) == count
    with unpacked(model):
        assert not any(isinstance(it, FusedNorm) for it in model.modules())
    assert fused == {name for name, it in model.named_modules() if isinstance(it, FusedNorm)}
    Target(model, loaded.family).use_operators()  # which has nothing left to do
    again = {name for name, it in model.named_modules() if isinstance(it, FusedNorm)}
    assert again == fused
