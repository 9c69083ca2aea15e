"""Which packages a model needs beside those that come with recap, and how to get what is missing.

Knows names of packages; imports none.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from engine.errors import ModelError

ACCELERATE = "accelerate"

# How a checkpoint is quantised -> the modules that compute with it, by the version of transformers
# that asks for most. A method that is not here needs none, or transformers says what it needs.
_QUANTISERS = {
    "aqlm": ("aqlm",),
    "auto-round": ("auto_round",),
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed_tensors",),
    "eetq": ("kernels",),
    "fbgemm_fp8": ("kernels",),
    "gptq": ("gptqmodel", "optimum"),
    "hqq": ("hqq",),
    "mxfp4": ("kernels", "triton"),
    "quanto": ("optimum.quanto",),
    "sinq": ("sinq",),
    "spqr": ("spqr_quant",),
    "torchao": ("torchao",),
    "vptq": ("vptq",),
}

# What pip calls them, where that is not the module's name.
_PACKAGES = {
    ACCELERATE: "'recap-vlm[accelerate]'",
    "aqlm": "'aqlm[gpu]'",
    "auto_round": "auto-round",
    "compressed_tensors": "compressed-tensors",
    "optimum.quanto": "optimum-quanto",
    "spqr_quant": "'spqr_quant[gpu]'",
}


def is_quantised(name: str, config: Any) -> bool:
    """Whether the checkpoint of a model is quantised.

    Raises:
        ModelError: it is, and packages that compute with it are not installed.
    """
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return False
    method = settings["quant_method"] if isinstance(settings, dict) else settings.quant_method
    method = str(getattr(method, "value", method))
    require(f"{name}: quantised with {method}, which", [*_QUANTISERS.get(method, ()), ACCELERATE])
    return True


def require(what: str, modules: Iterable[str]) -> None:
    """Raise ModelError, which names all that is missing and the command that brings it."""
    missing = [module for module in modules if not _is_here(module)]
    if missing:
        packages = " ".join(_PACKAGES.get(module, module) for module in missing)
        raise ModelError(f"{what} needs {' and '.join(missing)}: pip install {packages}")


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a module in a package that is not there
        return False
