"""A GPU that is not there: its tensors are a CPU's, masked.

What a GPU refuses is refused: tensors of two devices in one operator, float64 on MPS, and whatever
reaches the host while a graph is captured. Where the host would wait is counted. What is computed
is computed by the CPU, so that answers can be compared. Kernels, compilers and speed of a GPU are
not emulated.
"""

import ctypes
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import extract_stack
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import cpp_extension
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from engine import kernels

_GUARD = """#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>);
C10_REGISTER_GUARD_IMPL(MPS, NoOpDeviceGuardImpl<DeviceType::MPS>);
}  // namespace c10::impl
"""
"""A build of PyTorch without these devices cannot so much as cut their tensors."""

aten = torch.ops.aten
_MOVES = {aten._to_copy.default, aten.copy_.default}
_READ_BY_HOST = {
    *(aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default),
    *(aten.masked_select.default, aten.repeat_interleave.Tensor, aten._unique2.default),
}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor)
_ATTENTION = aten.scaled_dot_product_attention.default


def register_devices(folder: Path) -> None:
    """Let this process know the devices; needs a C++ compiler."""
    source, library = folder / "devices.cpp", folder / "devices.so"
    source.write_text(_GUARD)
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    where = f"-L{Path(torch.__file__).parent / 'lib'}"
    command = [kernels.compiler(), "-std=c++20", "-shared", "-fPIC", *includes, str(source)]
    subprocess.run([*command, "-o", str(library), where, "-lc10"], check=True)
    ctypes.CDLL(str(library))


class Masked(Tensor):
    """A CPU's tensor that says it is on another device."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor, device: torch.device) -> Self:
        it: Self = Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=device,
        )
        it.near = near
        return it

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} outside of the device")

    def data_ptr(self) -> int:
        return self.near.data_ptr()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __repr__(self) -> str:  # type: ignore[override]
        _current().waits_for("repr")
        return repr(self.near)

    def tolist(self) -> Any:
        _current().waits_for("tolist")
        return self.near.tolist()


class Emulated:
    """A device while it is there (see `emulated`).

    Attributes:
        device: its name.
        waits: where in `engine` the host waited for it, and how often.
        graphs: graphs that were captured.
        replays: how often one of them ran.
    """

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind, 0)
        self.waits: Counter[str] = Counter()
        self.graphs: list[_Graph] = []
        self.replays = 0
        self.capturing: _Graph | None = None

    def put(self, model: Any) -> Any:
        """Move a model there."""
        moved: dict[int, Masked] = {}
        with torch.inference_mode():
            for module in model.modules():
                for tensors in (module._parameters, module._buffers):
                    for name, tensor in tensors.items():
                        if tensor is not None:
                            near = tensor.detach().clone()
                            tensors[name] = moved.setdefault(id(tensor), self.mask(near))
        return model

    def mask(self, near: Tensor) -> Masked:
        """This tensor, as if it were there."""
        if self.device.type == "mps" and near.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        return Masked(near, self.device)

    def named(self, value: object) -> bool:
        """Whether this names the device."""
        return isinstance(value, torch.device) and value.type == self.device.type

    def waits_for(self, what: str) -> None:
        """The host waits; a graph cannot hold that."""
        frames = [frame for frame in extract_stack() if "/engine/" in frame.filename]
        place = Path(frames[-1].filename).name if frames else ""
        if self.capturing:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        self.waits[f"{place}: {what}"] += 1


class _Graph:
    """What was captured: operators, and the memory that they read and write."""

    def __init__(self) -> None:
        self._steps: list[tuple[Any, Any, Any, Any]] = []

    def add(self, step: tuple[Any, Any, Any, Any]) -> None:
        self._steps.append(step)

    def replay(self) -> None:
        _current().replays += 1
        with torch.inference_mode():
            for func, args, kwargs, result in self._steps:
                for old, new in zip(
                    tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True
                ):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, there: Emulated) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._there = there

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [it for it in tree_leaves((args, kwargs)) if isinstance(it, Tensor)]
        far = [it for it in tensors if isinstance(it, Masked)]
        if not far and not any(map(self._there.named, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if func is not _ATTENTION and _is_composite(func):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        near = [it for it in tensors if not isinstance(it, Masked)]
        if func in _MOVES:
            moved = self._move(func, args, kwargs, near)
            if moved is not None:
                return moved
        elif func in _INDEXED:
            self._check_index(args)
        elif any(it.ndim for it in near):
            shapes = [(type(it).__name__, tuple(it.shape)) for it in tensors]
            raise RuntimeError(f"all tensors must be on the same device: {func} {shapes}")
        elif func in _READ_BY_HOST:
            self._there.waits_for(str(func))
        return self._compute(func, args, kwargs)

    def _move(
        self, func: Any, args: Any, kwargs: dict[str, Any], near: list[Tensor]
    ) -> Tensor | None:
        """What crosses from one device to another; None where nothing does."""
        sent = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        to_host = func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu")
        to_host = to_host or (func is aten.copy_.default and not isinstance(args[0], Masked))
        if not near and not to_host:
            return None
        # A CPU does not wait for what it sends to CUDA without being told to.
        if to_host or not sent:
            self._there.waits_for(str(func))
        elif self._there.capturing:
            raise RuntimeError("operation not permitted when stream is capturing: from the host")
        elif self._there.device.type == "mps":
            raise RuntimeError("MPS reads what was sent when it may be gone")
        if func is aten.copy_.default:
            _near(args[0]).copy_(_near(args[1]))
            return args[0]  # type: ignore[no-any-return]
        copied = func(*tree_map(_near, args), **{**kwargs, "device": torch.device("cpu")})
        copied = copied.clone() if copied is _near(args[0]) else copied
        return copied if to_host else self._there.mask(copied)

    def _check_index(self, args: Any) -> None:
        for index in args[1]:
            if index is not None and (not isinstance(index, Masked) or index.dtype == torch.bool):
                self._there.waits_for("an index")
        assert isinstance(args[0], Masked), "a CPU's tensor is indexed by another device's"

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        there = self._there
        known = {id(it.near): it for it in tree_leaves((args, kwargs)) if isinstance(it, Masked)}
        args, kwargs = tree_map(_near, args), tree_map(_near, kwargs)
        if there.named(kwargs.get("device")):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        result = func(*args, **kwargs)
        if there.capturing:
            there.capturing.add((func, args, kwargs, result))

        def masked(it: Any) -> Any:
            if not isinstance(it, Tensor):
                return it
            return known[id(it)] if id(it) in known else there.mask(it)

        return tree_map(masked, result)


class _Functions(TorchFunctionMode):
    """What makes tensors of numbers does not come to `_Operators`."""

    def __init__(self, there: Emulated) -> None:
        super().__init__()
        self._there = there

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _MADE_OF_NUMBERS or not self._there.named(kwargs.get("device")):
            return func(*args, **kwargs)
        del kwargs["device"]
        self._there.waits_for(func.__name__)
        if isinstance(args[0], Masked):
            return func(*args, **kwargs)
        numbers = tree_map(lambda it: it.near.item() if isinstance(it, Masked) else it, args[0])
        return self._there.mask(func(numbers, *args[1:], **kwargs))


def _near(value: Any) -> Any:
    return value.near if isinstance(value, Masked) else value


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


_THERE: list[Emulated] = []


def _current() -> Emulated:
    return _THERE[-1]


@contextmanager
def emulated(kind: str) -> Iterator[Emulated]:
    """A device of this kind, `cuda` or `mps`, which `register_devices` made known."""
    there = Emulated(kind)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr("torch.cuda._lazy_init", lambda: None)
        patch.setattr("torch.cuda.get_device_name", lambda _: "none")
        patch.setattr("torch.cuda.CUDAGraph", _Graph)
        patch.setattr("torch.cuda.graph", _captured)
        patch.setattr("torch.cuda.graph_pool_handle", object)
        patch.setattr("torch.cuda.Stream", _Stream)
        patch.setattr("torch.cuda.current_stream", _Stream)
        patch.setattr("torch.cuda.stream", lambda _: ExitStack())
        stack.enter_context(_Functions(there))
        stack.enter_context(_Operators(there))
        _THERE.append(there)
        stack.callback(_THERE.pop)
        yield there


@contextmanager
def _captured(graph: _Graph, pool: object) -> Iterator[None]:
    assert pool is not None
    there = _current()
    there.capturing = graph
    try:
        yield
    finally:
        there.capturing = None
    there.graphs.append(graph)


class _Stream:
    def wait_stream(self, _: Self) -> None:
        """Nothing runs by itself here."""
