"""Operators of compiled passes on a CPU, in C++ (`kernels.cpp`), built where they are needed.

- `recap::attend_by_key` is attention for few queries behind many keys, 1.3 to 2.5 times as fast as
  PyTorch's (Zen 5, bfloat16), with the same bits for a query whatever is beside it.
- `recap::write` and `recap::packed_linear` do what `engine.kv_cache` and `engine.packing` say,
  without Python: there are five such calls a layer, each of which takes microseconds.

Built by what builds inductor's own code, and kept where that is: seconds at first, then nothing.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UncompilableModel

SOURCE = Path(__file__).with_name("kernels.cpp")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""In what attention may be asked for."""

ROWS_STEP = 16
"""Rows of a mask are padded to a multiple of this, the most floats that a vector holds."""


@cache
def load() -> ctypes.CDLL:
    """Build the operators, or find them built, and let PyTorch have them.

    Returns:
        The library; besides operators it has the function `recap_release`.

    Raises:
        UncompilableModel: they cannot be built, or not be loaded.
    """
    from torch._inductor.codecache import CppCodeCache  # noqa: PLC0415  # takes half a second
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler  # noqa: PLC0415

    # What is built is kept by its text, and another PyTorch needs another library.
    version = f"// PyTorch {torch.__version__} {torch.version.git_version}\n"
    try:
        library: ctypes.CDLL = CppCodeCache.load(version + SOURCE.read_text())
    except (CppCompileError, InvalidCxxCompiler, OSError) as error:
        lines = str(error).strip().splitlines()
        reason = next((line for line in lines if "error:" in line), lines[0])
        raise UncompilableModel(
            f"this model cannot be compiled (operators in C++ cannot be built: {reason})"
        ) from error
    library.recap_release.argtypes = (ctypes.c_int64,)
    library.recap_release.restype = None
    return library


def by_key(mask: Tensor) -> Tensor:
    """An additive mask [1, 1, rows, keys] as `recap::attend_by_key` takes it: each row its own.

    Returns:
        [1, keys, 1, rows or more] float32. Rows of the padding see nothing.
    """
    padding = (0, 0, 0, -mask.shape[2] % ROWS_STEP)
    padded = torch.nn.functional.pad(mask.float(), padding, value=-torch.inf)
    return padded.permute(0, 3, 1, 2).contiguous()


def _attended(query: Tensor, _: Tensor, value: Tensor, *__: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "attend_by_key(Tensor query, Tensor key, Tensor value, Tensor mask, float scale,"
    " float? softcap) -> Tensor"
)
_LIBRARY.define("hold(int key, Tensor weights, Tensor? bias) -> ()")
torch.library.register_fake("recap::attend_by_key", _attended, lib=_LIBRARY)
