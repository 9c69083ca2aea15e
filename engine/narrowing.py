"""Weights that stay in the half precision of their checkpoint where a model computes in float32.

Nothing is lost: an operator of `engine.kernels` widens weights as it reads them. What is gained is
half the memory, and the time that reading the other half takes. All but the linear layers of the
language part and its head is in float32, which prompts and pictures pass once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, try_to_load_from_cache
from orjson import loads
from safetensors import SafetensorError, safe_open
from torch import nn

from engine import kernels
from engine.families import sees
from engine.packing import on_x86

_VECTORS = ("AVX2", "AVX512")
_STORED = {torch.bfloat16: "BF16", torch.float16: "F16"}


def narrow_dtype(
    own: torch.dtype, computed: torch.dtype, place: torch.device
) -> torch.dtype | None:
    """In what a model's weights stay; None where they have the type that is computed in.

    Args:
        own: the checkpoint's, as its config has it.
        computed: what the model computes in.
        place: where it is.
    """
    if own not in kernels.HALVES or computed != torch.float32 or place.type != "cpu":
        return None
    vectors = torch.backends.cpu.get_cpu_capability() in _VECTORS
    return own if vectors and on_x86() and kernels.promising() else None


def narrowed(model_class: type[Any], dtype: torch.dtype) -> type[Any]:
    """The same class of transformers' models; its linear layers are made, and loaded, narrow.

    They cannot be run before they are packed.
    """

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, config, *args, **kwargs)
        for layer in _linears(self):
            weight = layer.weight.detach().to(dtype)
            layer.weight = nn.Parameter(weight, requires_grad=False)

    same = {"__init__": init, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), same)


def holds(source: str, dtype: torch.dtype) -> bool | None:
    """Whether all matrices of a checkpoint's language part are of this type.

    Args:
        source: a folder, or an id on the Hub.

    Returns:
        None where its files are not here, or do not tell.
    """
    try:
        files = _weight_files(source)
        return all(_matrices(file) <= {_STORED[dtype]} for file in files) if files else None
    except _UNREADABLE:  # loading them says what is wrong
        return None


def _weight_files(source: str) -> list[Path]:
    """The safetensors that transformers loads; a folder may hold others."""
    if whole := _file_of(source, constants.SAFETENSORS_SINGLE_FILE):
        return [whole]
    if index := _file_of(source, constants.SAFETENSORS_INDEX_FILE):
        return [
            index.parent / name for name in set(loads(index.read_bytes())["weight_map"].values())
        ]
    return []


def _file_of(source: str, name: str) -> Path | None:
    """A file of a folder, or of an id on the Hub if it is in the cache."""
    if Path(source).is_dir():
        file = Path(source, name)
        return file if file.exists() else None
    cached = try_to_load_from_cache(source, name)
    return Path(cached) if isinstance(cached, str) else None


def _matrices(file: Path) -> set[str]:
    """The types of a file's matrices of numbers, as safetensors names them, but vision towers'."""
    with safe_open(file, "pt") as tensors:
        names = [name for name in tensors.keys() if not sees(name)]  # noqa: SIM118  # it is no mapping
        slices = map(tensors.get_slice, names)
        matrices = {each.get_dtype() for each in slices if len(each.get_shape()) == 2}
    return {kind for kind in matrices if "F" in kind}


def _linears(model: Any) -> Iterator[nn.Linear]:
    """What `engine.packing.pack` takes and nothing else has."""
    layers = list(model.get_decoder().modules())
    configs = (model.config, model.config.get_text_config())
    if not any(config.tie_word_embeddings for config in configs):
        layers.append(model.get_output_embeddings())
    return (layer for layer in layers if type(layer) is nn.Linear)


_UNREADABLE = (AttributeError, KeyError, OSError, SafetensorError, TypeError, ValueError)
"""What damaged files, and an index that is none, raise."""
