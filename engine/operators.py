"""What operators of `engine.kernels` compute in place of a model's modules, and the way back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine import kernels
from engine.layers import FusedLayer, fuse_layers
from engine.norms import FusedNorm, fuse_norms
from engine.packing import PackedLinear, hand_over


def give_to_operators(model: Any) -> None:
    """Let operators, which `serve` it, compute what they can of a model's language part.

    Raises:
        UnbuildableOperators: they cannot be built; the model stays as it was.
    """
    kernels.load()
    hand_over(model)
    fuse_norms(model)
    fuse_layers(model)  # which takes the others' results


@contextmanager
def unpacked(model: Any) -> Iterator[None]:
    """A model that was packed with `spare`, for a while as it was before."""
    kinds = (PackedLinear, FusedNorm, FusedLayer)
    replaced = {name: it for name, it in model.named_modules() if isinstance(it, kinds)}
    originals = {name: module.original for name, module in replaced.items()}
    try:
        for name, original in reversed(originals.items()):  # parts before what they are parts of
            model.set_submodule(name, original)
        yield
    finally:
        for name, module in replaced.items():
            model.set_submodule(name, module)
