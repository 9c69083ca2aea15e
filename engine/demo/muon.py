"""The Muon optimiser (Jordan et al., 2024) in float32.

torch's own orthogonalises in bfloat16, which a CPU without instructions for it does ten times as
slowly as this. Matrices of one shape are orthogonalised together. Knows nothing of models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's quintic, steep at zero
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose every step is orthogonalised and has AdamW's usual size.

    Args:
        matrices: two-dimensional parameters.
        lr: learning rate on AdamW's scale (Liu et al., 2025: times 0.2 sqrt(longer side)).
        momentum: the share of the past in the average of gradients.
        weight_decay: decoupled, as AdamW's.
    """

    def __init__(
        self,
        matrices: Iterable[torch.Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(matrices, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for shape, matrices in alike.items():
                steps = torch.stack([self._averaged(m, group["momentum"]) for m in matrices])
                size = group["lr"] * 0.2 * max(shape) ** 0.5
                for matrix, step in zip(matrices, orthogonalised(steps), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.sub_(step, alpha=size)

    def _averaged(self, matrix: torch.Tensor, momentum: float) -> torch.Tensor:
        """The gradient with Nesterov momentum."""
        gradient = matrix.grad
        assert gradient is not None
        state = self.state[matrix]
        if "average" not in state:
            state["average"] = torch.zeros_like(matrix)
        state["average"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(state["average"], momentum)


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices with the same singular vectors and singular values near one.

    Args:
        matrices: (number, rows, columns) float32.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalised(matrices.mT).mT
    a, b, c = _COEFFICIENTS
    norms: torch.Tensor = torch.linalg.matrix_norm(matrices, keepdim=True)
    found = matrices / norms.clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found
