"""Norms of a model's language part, each as one operator of `engine.kernels`.

As transformers has them they take eight operators of a microsecond or two each, whose work is less.
A norm is replaced where a trial says that the operator computes the same.
"""

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from engine.kernels import RMS_NORM
from engine.substitutes import substitute

CLOSE = 4
"""Roundings by which the same norm may differ, of the largest number."""


class FusedNorm(nn.Module):
    """A root mean square norm, [..., dims] to [..., dims].

    Attributes:
        original: what it replaces.
        scale: [dims] float32.
        eps: what is added to the mean of squares.
        rounded: whether to the model's type before it is scaled, too.
    """

    def __init__(self, original: nn.Module, scale: Tensor, eps: float, *, rounded: bool) -> None:
        """As the attributes."""
        super().__init__()
        self.original = original
        self.scale, self.eps, self.rounded = scale, eps, rounded

    def forward(self, rows: Tensor) -> Tensor:
        """The norm of each row."""
        if torch.compiler.is_compiling():  # a compiler fuses it with what is around it
            normed: Tensor = self.original(rows)
        else:
            normed = RMS_NORM(rows, self.scale, self.eps, self.rounded)
        return normed


@torch.inference_mode()
def fuse_norms(model: Any) -> None:
    """Replace the norms of a model's language part that are not; operators must be loaded."""
    substitute(model, FusedNorm, _fused)


def _fused(norm: nn.Module) -> FusedNorm | None:
    """The same norm as one operator, if it is one that this can compute."""
    parameters = dict(norm.named_parameters())
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1 or eps is None:
        return None
    weight = parameters["weight"].detach()
    rows = _rows(len(weight)).to(weight.dtype)
    expected = norm(rows).float()
    best, least = None, CLOSE * torch.finfo(weight.dtype).eps * float(expected.abs().max())
    for offset, rounded in product((0.0, 1.0), (True, False)):  # Gemma's scale is 1 + weight
        tried = FusedNorm(norm, weight.float() + offset, eps, rounded=rounded)
        difference = float((tried(rows).float() - expected).abs().max())
        if difference < least:
            best, least = tried, difference
    return best


def _rows(dims: int) -> Tensor:
    """[2, dims] whose norm shows whether means are taken away, and how large eps is."""
    row = torch.randn(dims, generator=torch.Generator().manual_seed(0)) + 1
    return torch.stack([row, row / 1000])
