"""Numbers on their way from the host to a device, which the host does not wait for if it need not.

CUDA's driver has a copy of pageable memory before an asynchronous transfer returns, so that what
was sent may be changed or freed at once. MPS reads it later; there the host waits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def send(source: Tensor, destination: Tensor) -> None:
    """Copy a CPU's numbers into a tensor of the same shape, of any type, on any device."""
    destination.copy_(source, non_blocking=destination.is_cuda)


def sent(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """These integers as int64 on a device."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=device.type == "cuda")
