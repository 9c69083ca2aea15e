"""Forwards of the language part, compiled; on CUDA captured as graphs too.

One form is compiled, for any length of the context and any number of nodes from two on: what a pass
reads of the cache is not part of the compiled shapes. What inductor makes is kept on disk. On a CPU
some operators of a pass are `engine.kernels`'. A captured graph has fixed shapes and addresses;
`CAPTURED` are the shapes of passes then.
"""

import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from platformdirs import user_cache_path
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from engine import kernels
from engine.device_memory import ran_out
from engine.errors import UnbuildableOperators, UncompilableModel, UsageError
from engine.kv_cache import TreeCache
from engine.masks import Masks
from engine.operators import give_to_operators
from engine.packing import SharedProducts
from engine.passes import Forward, PassShapes

CAPTURED = PassShapes(nodes=(2, 8, 16, 32, 64), extent=512)
"""Shapes of passes that are captured: each costs a capture and the memory of its activations."""

ONE_FORM = PassShapes(least=2, by_key=True)
"""Of compiled passes: one node would be a form of its own, as long to compile again for at most a
few percent of a plain step, and with other roundings than trees have."""

CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that says where inductor keeps what it makes."""

WARM_UPS = 2
"""Passes before a capture, in which libraries and allocator settle."""


def pass_shapes(device: torch.device) -> PassShapes:
    """The shapes that compiled passes take on this device."""
    return CAPTURED if device.type == "cuda" else ONE_FORM


def require_compiler(device: torch.device) -> None:
    """Raises UsageError where passes cannot be compiled for this device."""
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--compile is for cpu and cuda, not {device.type}")
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise UsageError("--compile needs triton: pip install triton")
    compiler = kernels.compiler()
    if shutil.which(compiler) is None:
        raise UsageError(
            f"--compile needs a C++ compiler, and there is no {compiler}; install it, or name "
            "another in the environment variable CXX"
        )


def compiled(forward: Forward, model: Any) -> Forward:
    """What computes the same as `forward`, of this model, faster; its first calls compile.

    On a CPU operators take the model's layers first, which leaves little to be compiled.

    Raises:
        UncompilableModel: it cannot be done.
    """
    _keep_on_disk()
    if model.device.type == "cuda":
        return CapturedForward(CompiledForward(forward))
    if model.dtype not in kernels.DTYPES:
        raise UncompilableModel(f"this model cannot be compiled (in {model.dtype})")
    try:
        give_to_operators(model)
    except UnbuildableOperators as error:
        raise UncompilableModel(f"this model cannot be compiled ({error})") from error
    return CompiledForward(forward)


def _keep_on_disk() -> None:
    """Let inductor keep what it makes where it outlives a restart, unless the user says where.

    Its own default does not, and importing it writes that into the environment.
    """
    if os.environ.get(CACHE_DIR) in (None, default_cache_dir()):
        folder = user_cache_path("recap", appauthor=False) / "inductor"
        os.environ[CACHE_DIR] = str(folder)


class CompiledForward:
    """A forward that inductor made, in one form for any number of nodes from two on."""

    def __init__(self, forward: Forward) -> None:
        self._forward: Forward = torch.compile(
            forward,
            fullgraph=True,
            options={
                # A loaded model stays as it is: to look at all its modules takes 0.7 ms a pass.
                # No other model is taken for it: each has `SharedProducts` of its own.
                "post_grad_custom_pre_pass": SharedProducts(),
                "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
            },
        )

    def __call__(
        self, ids: Tensor, positions: Tensor, masks: Masks, cache: TreeCache
    ) -> tuple[Tensor, Tensor]:
        """As `engine.passes.LanguagePart`.

        Raises:
            UncompilableModel: from a first call.
        """
        assert cache.slots is not None, "compiled passes are told where they write"
        for mask in _each(masks):
            for dim in (1, 2, 3):
                if mask.shape[dim] > 1:
                    _varies(mask, dim)
        for buffer in cache.buffers:
            _varies(buffer, 3)
        _varies(ids, 1)
        _varies(positions, positions.ndim - 1)
        _varies(cache.slots, 0)
        try:
            return self._forward(ids, positions, masks, cache)
        except TorchDynamoException as error:
            reason = " ".join(str(error).strip().splitlines()[:2])
            raise UncompilableModel(f"this model cannot be compiled ({reason})") from error


class CapturedForward:
    """A forward as CUDA graphs, one for each shape of a pass.

    A graph reads and writes where its capture did. What passes read lies in kept buffers; when one
    of those has moved or has other strides, or the cache's, all graphs are captured again. They
    share the memory of what they compute on the way: results are read before another one runs.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]] = {}
        self._layouts: list[tuple[int, tuple[int, ...]]] = []
        self._pool: Any = None

    def __call__(
        self, ids: Tensor, positions: Tensor, masks: Masks, cache: TreeCache
    ) -> tuple[Tensor, Tensor]:
        """As `engine.passes.LanguagePart`; a result is good until the next call."""
        assert cache.slots is not None, "captured passes are told where they write"
        read = (ids, positions, cache.slots, *_each(masks), *cache.buffers)
        layouts = [(tensor.data_ptr(), tensor.stride()) for tensor in read]
        if layouts != self._layouts:
            self._graphs.clear()
            self._layouts = layouts
        shape = (ids.shape[1], _each(masks)[0].shape[-1])
        if not self._graphs:  # the pool of graphs that are gone, or failed, cannot be used again
            self._pool = torch.cuda.graph_pool_handle()
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(ids, positions, masks, cache)
        graph, results = self._graphs[shape]
        graph.replay()
        return results

    def _capture(
        self, ids: Tensor, positions: Tensor, masks: Masks, cache: TreeCache
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]:
        """Passes write into slots that are not committed, so that more of them do no harm.

        Raises:
            UncompilableModel: it does what a graph cannot hold.
        """
        aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self._forward(ids, positions, masks, cache)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                results = self._forward(ids, positions, masks, cache)
        except RuntimeError as error:
            if ran_out(error):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise UncompilableModel(f"this model's passes cannot be captured ({reason})") from error
        return graph, results


def _varies(tensor: Tensor, dim: int) -> None:
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def _each(masks: Masks) -> Sequence[Tensor]:
    return list(masks.values()) if isinstance(masks, dict) else [masks]
