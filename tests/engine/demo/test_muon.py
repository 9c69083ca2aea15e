"""Muon: steps of even size in every direction, the same as torch's but for bfloat16's rounding."""

import pytest
import torch

from engine.demo.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(3, 8, 5), (2, 4, 9), (1, 6, 6)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_singular_vectors_stay() -> None:
    left, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
    right, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))
    found = left.T @ orthogonalised((left * torch.linspace(1, 9, 6)) @ right.T[None])[0] @ right
    assert torch.allclose(found, found.diagonal().diag(), atol=1e-5)


def test_it_steps_as_torchs_own_does() -> None:
    start, gradients = torch.eye(4, 3), torch.randn(3, 4, 3, generator=torch.manual_seed(0))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    mine = Muon([ours], lr=0.02)
    torchs = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        torchs.step()  # type: ignore[no-untyped-call]
    assert torch.allclose(ours, theirs, atol=2e-3)
    assert (ours - start).abs().max() > 0.01


def test_a_matrix_without_a_gradient_rests() -> None:
    still, moved = torch.nn.Parameter(torch.eye(2)), torch.nn.Parameter(torch.eye(2))
    moved.grad = torch.ones(2, 2)
    Muon([still, moved], lr=0.1).step()
    assert torch.equal(still, torch.eye(2))
    assert not torch.equal(moved, torch.eye(2))
