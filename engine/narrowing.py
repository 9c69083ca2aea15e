"""Weights that stay in the half precision of their checkpoint where a model computes in float32.

Nothing is lost: an operator of `engine.kernels` widens weights as it reads them. What is gained is
half the memory, and the time that reading the other half takes. All but the linear layers of the
language part and its head is in float32, which prompts and pictures pass once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open
from torch import nn

from engine import kernels
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


def holds(source: str, dtype: torch.dtype) -> bool:
    """Whether all matrices of a checkpoint are of this type, in files that tell.

    Args:
        source: a folder, or an id on the Hub whose files are in the cache.
    """
    try:
        folder = (
            source if Path(source).is_dir() else snapshot_download(source, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return False
    files = sorted(Path(folder).glob("*.safetensors"))
    return bool(files) and all(_matrices(file) <= {_STORED[dtype]} for file in files)


def _matrices(file: Path) -> set[str]:
    """The types of a file's matrices, as safetensors names them."""
    with safe_open(file, "pt") as tensors:
        slices = map(tensors.get_slice, tensors.keys())
        return {tensor.get_dtype() for tensor in slices if len(tensor.get_shape()) == 2}


def _linears(model: Any) -> Iterator[nn.Linear]:
    """What `engine.packing.pack` takes and nothing else has."""
    layers = list(model.get_decoder().modules())
    configs = (model.config, model.config.get_text_config())
    if not any(config.tie_word_embeddings for config in configs):
        layers.append(model.get_output_embeddings())
    return (layer for layer in layers if type(layer) is nn.Linear)
