"""Operators of passes on a CPU, in C++ (`kernels.cpp`), built on the machine that runs them.

- `recap::attend_by_key` is attention for few queries behind many keys, 1.3 to 2.5 times as fast as
  PyTorch's (Zen 5, bfloat16), with the same bits for a query whatever is beside it.
- `recap::decode` is a whole decoder layer of the usual kind, without Python, in which thirty
  operators of microseconds each are one.
- `recap::states` makes of hidden states what `engine.states` says.
- `recap::top` finds the k most probable tokens of rows of logits.
- `recap::packed_linear` multiplies few rows by weights as PyTorch keeps them, and a row's product
  is the same bits whatever is beside it: in bfloat16 on x86 CPUs with instructions for that, in two
  thirds of oneDNN's time (Zen 5, 16 rows of 576); floats by weights in half precision on all that
  have AVX2, for `engine.narrowing`.
- `recap::write`, and `recap::packed_linear` with oneDNN's layout, do what `engine.kv_cache` and
  `engine.packing` say, without Python: there are five such calls a layer, of microseconds each.

Building takes a C++ compiler, the command line is inductor's, and a few seconds, once: the library
is kept by what it was made of and for.
"""

import ctypes
import os
import shutil
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from filelock import FileLock
from platformdirs import user_cache_path
from torch import Tensor

from engine.errors import UnbuildableOperators
from engine.machine import cpu_features, cpu_name

SOURCE = Path(__file__).with_name("cpp") / "kernels.cpp"

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""In what attention may be asked for."""

HALVES = (torch.bfloat16, torch.float16)
"""In what weights may be that floats are multiplied by."""

ROWS_STEP = 16
"""A mask has a multiple of this many numbers for a key, the most floats that a vector holds."""


def serve(model: Any) -> bool:
    """Whether passes of a model can use them: all of it is on a CPU, in one of `DTYPES`."""
    places = {weights.device.type for weights in model.parameters()}
    return places == {"cpu"} and model.dtype in DTYPES


def by_key(mask: Tensor) -> bool:
    """Whether a mask is as operators take it: [1, keys, 1, rows], where others have one first."""
    return mask.ndim == 4 and mask.shape[1] > mask.shape[2] == 1


def compiler() -> str:
    """The C++ compiler that inductor calls; `CXX` names another. It need not be there."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def library_file() -> Path:
    """Where the library of this source, for this PyTorch and CPU, is kept, built or not."""
    capability = torch.backends.cpu.get_cpu_capability()
    cpu = (cpu_name(), cpu_features(), capability)
    made_for = (torch.__version__, torch.version.git_version, *cpu)
    parts = sorted(SOURCE.parent.glob("*.h"))
    made_of = [file.read_text() for file in (SOURCE, *parts)]
    name = sha256("\n".join(map(str, [*made_of, *made_for])).encode()).hexdigest()[:16]
    return user_cache_path("recap", appauthor=False) / "operators" / f"{name}.so"


def refusal_file() -> Path:
    """Is there where building was tried and failed: a line that names the compiler, and why. `load`
    tries again."""
    return library_file().with_suffix(".failed")


def promising() -> bool:
    """Whether they are there, or may come to be: there is a compiler, it has not failed, and what
    it makes can be kept."""
    file, refusal = library_file(), refusal_file()
    try:
        if file.exists():
            return True
        folder = next(folder for folder in file.parents if folder.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            return False
        if refusal.exists() and refusal.read_text().partition("\n")[0] == compiler():
            return False
    except OSError:
        return False
    return shutil.which(compiler()) is not None


@cache
def load() -> ctypes.CDLL:
    """Let PyTorch have the operators; they are built where they are not.

    Returns:
        The library; besides operators it has functions that Python calls by `ctypes`.

    Raises:
        UnbuildableOperators: they cannot be built, or not be loaded.
    """
    file = library_file()
    try:
        library = _loaded(file) or _built(file)
    except Exception as error:  # of inductor's own classes, which vary with its version
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "error:" in line), lines[0])
        raise UnbuildableOperators(f"operators in C++ cannot be built ({reason})") from error
    for release in (library.recap_release, library.recap_release_layer):
        release.argtypes = (ctypes.c_int64,)
        release.restype = None
    for answer in (library.recap_multiplies, library.recap_widens):
        answer.argtypes = ()
        answer.restype = ctypes.c_bool
    return library


def loaded() -> bool:
    """Whether PyTorch has the operators."""
    return load.cache_info().currsize > 0


def multiplies(rows: torch.dtype, weights: torch.dtype) -> bool:
    """Whether `recap::packed_linear`, which is loaded, takes rows and weights as they are.

    With AMX, which it does not use, oneDNN multiplies in bfloat16.
    """
    if rows == torch.float32:
        return weights in HALVES and bool(load().recap_widens())
    amx: bool = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
    pairs = rows == weights == torch.bfloat16
    return pairs and not amx and bool(load().recap_multiplies())


def _loaded(file: Path) -> ctypes.CDLL | None:
    """The library, where it is there and sound."""
    try:
        return ctypes.CDLL(str(file))
    except OSError:
        return None


def _built(file: Path) -> ctypes.CDLL:
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions  # noqa: PLC0415  # 0.9 s

    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")), TemporaryDirectory(dir=file.parent) as folder:
        if library := _loaded(file):  # another process has built it meanwhile
            return library
        try:
            builder = CppBuilder(
                name=file.stem,
                sources=[str(SOURCE)],
                output_dir=folder,
                BuildOption=CppTorchOptions(vec_isa=_vectors()),
            )
            builder.build()
            Path(builder.get_target_file_path()).replace(file)
            library = ctypes.CDLL(str(file))
        except Exception as error:
            file.unlink(missing_ok=True)
            refusal_file().write_text(f"{compiler()}\n{error}")
            raise
    refusal_file().unlink(missing_ok=True)
    return library


def _vectors() -> Any:
    """The vectors that PyTorch itself computes with here. Inductor finds out by compiling trials,
    which takes as long as what is built."""
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, pick_vec_isa  # noqa: PLC0415

    known = {"AVX512": VecAVX512, "AVX2": VecAVX2}
    capability = torch.backends.cpu.get_cpu_capability()
    return known[capability]() if capability in known else pick_vec_isa()


def _attended(query: Tensor, _: Tensor, value: Tensor, *__: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "attend_by_key(Tensor query, Tensor key, Tensor value, Tensor mask, float scale,"
    " float? softcap) -> Tensor"
)
_LIBRARY.define("states(Tensor hidden) -> Tensor")
_LIBRARY.define("top(Tensor logits, int k) -> (Tensor, Tensor)")
_LIBRARY.define("rms_norm(Tensor rows, Tensor scale, float eps, bool rounded) -> Tensor")
_LIBRARY.define("hold(int key, Tensor weights, Tensor? bias, bool lonely) -> ()")
_LIBRARY.define(
    "hold_layer(int key, int[] linears, Tensor[] scales, float[] eps, bool[] rounded, int heads,"
    " int kv_heads, float scale) -> ()"
)
_LIBRARY.define(
    "decode(Tensor hidden, Tensor cos, Tensor sin, Tensor mask, Tensor(a!) keys, Tensor(b!) values,"
    " int keys_row, int values_row, Tensor slots, int key) -> Tensor"
)
torch.library.register_fake("recap::attend_by_key", _attended, lib=_LIBRARY)
torch.library.register_fake(
    "recap::decode", lambda hidden, *_: torch.empty_like(hidden), lib=_LIBRARY
)

ATTEND_BY_KEY = torch.ops.recap.attend_by_key.default
DECODE = torch.ops.recap.decode.default
RMS_NORM = torch.ops.recap.rms_norm.default
STATES = torch.ops.recap.states.default
TOP = torch.ops.recap.top.default
