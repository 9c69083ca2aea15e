"""Linear layers of a bfloat16 model on a CPU, kept in the layout that its matrix units read.

oneDNN lays a weight matrix out anew in every call that gets it as PyTorch keeps it, and that takes
longer than the product itself: laid out once, SmolLM2-135M's products take about half the time (two
cores with AMX, 1 to 16 rows). They then also come out the same, bit by bit, in a pass over one
token and in one over up to `SAME_ROWS`: without that, answers in bfloat16 depend on the tree.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

SAME_ROWS = 32
"""Rows up to which a row's product does not depend on how many others there are (measured with
oneDNN 3.7 and 3.11); the layout is made for half as many, the usual size of a pass."""


def packable(model: Any) -> bool:
    """Whether this model is on a CPU, in bfloat16, and the CPU multiplies that in hardware."""
    embeddings = model.get_input_embeddings().weight
    return (
        embeddings.device.type == "cpu"
        and embeddings.dtype == torch.bfloat16
        and platform.machine() in ("x86_64", "AMD64")
        and torch._C._has_mkldnn
        and fast_bfloat16()
    )


def fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware (AVX512-BF16 or AMX)."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def pack(model: Any, *, spare: bool = False) -> None:
    """Replace the linear layers of a model's language part and output head.

    Embeddings that are tied to the head stay as they are; the head's weights then take their
    memory twice. With `spare` all layers do: `unpacked` needs that.
    """
    names = {id(module): name for name, module in model.named_modules()}
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    linear = [module for module in (*decoder.modules(), head) if type(module) is nn.Linear]
    for layer in linear:
        model.set_submodule(names[id(layer)], PackedLinear(layer, spare=spare))


@contextmanager
def unpacked(model: Any) -> Iterator[None]:
    """A model that was packed with `spare`, for a while as it was before."""
    packed = {name: it for name, it in model.named_modules() if isinstance(it, PackedLinear)}
    for name, layer in packed.items():
        model.set_submodule(name, layer.original)
    try:
        yield
    finally:
        for name, layer in packed.items():
            model.set_submodule(name, layer)


class PackedLinear(nn.Module):
    """A linear layer, `[..., in_features]` to `[..., out_features]`, both bfloat16."""

    def __init__(self, layer: nn.Linear, *, spare: bool) -> None:
        """`spare`: keep the layer too, as `original`."""
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self._spare = (layer,) if spare else None  # in a tuple it is no submodule
        rows = SAME_ROWS // 2
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        self._key = next(_KEYS)
        _LAYERS[self._key] = self

    @property
    def original(self) -> nn.Linear:
        """What this was made of."""
        assert self._spare, "packed without a spare"
        return self._spare[0]

    def forward(self, rows: Tensor) -> Tensor:
        """The product, plus bias."""
        if torch.compiler.is_compiling():
            product: Tensor = torch.ops.recap.packed_linear(rows, self._key, self.out_features)
            return product
        return self.product(rows)

    def product(self, rows: Tensor) -> Tensor:
        """`forward`, for what is not traced."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, "none", [], ""
        )
        return product

    def extra_repr(self) -> str:
        """For the model's printed form."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


_KEYS = count()
_LAYERS: "WeakValueDictionary[int, PackedLinear]" = WeakValueDictionary()


def _packed_linear(rows: Tensor, key: int, _: int) -> Tensor:
    return _LAYERS[key].product(rows)


# An operator of its own: a compiler cannot see a packed weight as a tensor.
_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("packed_linear(Tensor rows, int key, int out_features) -> Tensor")
_LIBRARY.impl("packed_linear", _packed_linear, "CompositeExplicitAutograd")
torch.library.register_fake(
    "recap::packed_linear",
    lambda rows, _, out_features: rows.new_empty((*rows.shape[:-1], out_features)),
    lib=_LIBRARY,
)
