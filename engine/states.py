"""What memories keep of a target's state at a token: the signs of what its output head reads.

Texts that go on alike bring a model into states alike, whatever their tokens, and pictures are in
them. Signs of 256 numbers tell such states about as well as the numbers themselves (see the log,
`engine/EXPERIMENTS.md`), and are compared by counting bits.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine import kernels

BITS = 256
WORDS = BITS // 64
"""Of a state."""


def states_of(hidden: Tensor) -> NDArray[np.uint64]:
    """[n, WORDS] states, of [n, width] numbers that an output head reads.

    On a CPU an operator in C++ does it in less time, once operators are loaded.
    """
    if hidden.device.type == "cpu" and kernels.loaded():
        return kernels.STATES(hidden).numpy().view(np.uint64)  # type: ignore[no-any-return]
    return packed_states(hidden).cpu().numpy().view(np.uint64)


def packed_states(hidden: Tensor) -> Tensor:
    """The same as [n, 2 * WORDS] int32, made where the numbers are."""
    signs = torch.nn.functional.pad(hidden[:, :BITS] > 0, (0, max(BITS - hidden.shape[1], 0)))
    places = torch.arange(32, dtype=torch.int32, device=hidden.device)
    return (signs.view(-1, BITS // 32, 32).int() << places).sum(-1, dtype=torch.int32)
