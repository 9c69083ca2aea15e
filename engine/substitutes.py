"""Modules of a model's language part that others take the place of."""

from collections.abc import Callable
from typing import Any

from torch import nn


def substitute(
    model: Any, kind: type[nn.Module], made: Callable[[nn.Module], nn.Module | None]
) -> None:
    """Replace modules by what `made` makes of them, but those that it makes nothing of.

    Args:
        kind: of what is made; it has its module as `original`, which is not replaced again.
    """
    names = {id(module): name for name, module in model.named_modules()}
    modules = list(model.get_decoder().modules())
    replaced = {id(module.original) for module in modules if isinstance(module, kind)}
    for module in modules:
        new = None if id(module) in replaced else made(module)
        if new is not None:
            model.set_submodule(names[id(module)], new)
