"""Operators of compiled passes on a CPU, in C++ (`kernels.cpp`), built where they are needed.

- `recap::attend_by_key` is attention two to three times as fast as PyTorch's for few queries behind
  many keys (Zen 5), with the same bits for a query whatever is beside it.
- `recap::write` and `recap::packed_linear` do what `engine.kv_cache` and `engine.packing` say,
  without Python: there are six such calls a layer, each of which takes microseconds.

Built by what builds inductor's own code, and kept where that is: seconds at first, then nothing.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UncompilableModel

SOURCE = Path(__file__).with_name("kernels.cpp")

ROWS_STEP = 16
"""Rows of a mask are padded to a multiple of this, the most floats that a vector holds."""


@cache
def load() -> None:
    """Build the operators, or find them built, and make them known to PyTorch.

    Raises:
        UncompilableModel: they cannot be built, or not be loaded.
    """
    from torch._inductor.codecache import CppCodeCache  # noqa: PLC0415  # takes half a second
    from torch._inductor.exc import CppCompileError  # noqa: PLC0415

    try:
        CppCodeCache.load(SOURCE.read_text())
    except (CppCompileError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UncompilableModel(f"operators for it cannot be built ({reason})") from error
    torch.library.register_fake("recap::attend_by_key", _attended, lib=_LIBRARY)
    torch.library.register_fake("recap::packed_linear", _multiplied, lib=_LIBRARY)


def by_key(mask: Tensor) -> Tensor:
    """An additive mask [1, 1, rows, keys] as `recap::attend_by_key` takes it.

    Returns:
        [1, keys, 1, rows or more] float32.
    """
    padded = torch.nn.functional.pad(mask.float(), (0, 0, 0, -mask.shape[2] % ROWS_STEP))
    return padded.permute(0, 3, 1, 2).contiguous()


def _attended(query: Tensor, _: Tensor, value: Tensor, *__: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


def _multiplied(rows: Tensor, _: int, out_features: int) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], out_features))


_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
