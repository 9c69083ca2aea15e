"""Finds and loads a model: name, device, dtype, family, weights, prompt encoder.

Every way in which that fails becomes one line. Code from a model's repository is never run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import errors as hub_errors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.logging import disable_progress_bar

from engine.attention import NAME as TREE_ATTENTION
from engine.demo import MODEL_DIR
from engine.errors import ModelError, UsageError
from engine.families import Family, family_of
from engine.processors import load_processor
from engine.prompts import PromptEncoder

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

DEMO_MODEL = "demo"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to answer.

    Attributes:
        name: as the user named it.
        model: the transformers model, on its device, in eval mode.
        family: how it differs from others.
        encoder: turns conversations into its inputs.
        stop_ids: tokens that end an answer.
        context_length: tokens that it can attend to; None where its config does not say.
    """

    name: str
    model: Any
    family: Family
    encoder: PromptEncoder
    stop_ids: frozenset[int]
    context_length: int | None


def load_model(name: str, device: Device = "auto", dtype: Dtype = "auto") -> LoadedModel:
    """Load a model by `demo`, folder or Hugging Face id.

    `auto` picks CUDA, then Apple's MPS, then the CPU; and of dtypes the checkpoint's own, except
    that a CPU without bfloat16 instructions, and the demo model, which is too small to gain from
    them, compute in float32.

    Raises:
        UsageError: the device is not there.
        ModelError: the model cannot be found or loaded, or its family is not supported.
    """
    place = _device(device)
    demo = name == DEMO_MODEL
    source = str(MODEL_DIR) if demo else _source(name)
    with _explained(name):
        config = _config(name, source)
        family = family_of(config)
        encoder = PromptEncoder(load_processor(source, family), family, config)
        auto = AutoModelForImageTextToText if family.vision else AutoModelForCausalLM
        attention = {"text_config": TREE_ATTENTION} if family.vision else TREE_ATTENTION
        disable_progress_bar()  # of reading weights; a download's is the Hub's own and stays
        model: Any = auto.from_pretrained(
            source,
            config=config,
            dtype=torch.float32 if demo and dtype == "auto" else _dtype(dtype, config, place),
            attn_implementation=attention,
            trust_remote_code=False,
        )
        model = model.to(place).eval()
    return LoadedModel(
        name=name,
        model=model,
        family=family,
        encoder=encoder,
        stop_ids=_stop_ids(model, encoder.tokenizer),
        context_length=getattr(config.get_text_config(), "max_position_embeddings", None),
    )


def _source(name: str) -> str:
    """A folder as it stands, or an id for the Hub."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.exists():
        raise ModelError(f"{name}: a model is a folder or a Hugging Face id, and this is a file")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: there is no such folder")
    return name


def _config(name: str, source: str) -> Any:
    """The model's config; refuses a repository whose model is code of its own."""
    settings, _ = PreTrainedConfig.get_config_dict(source)
    kind = settings.get("model_type")
    if "auto_map" in settings and kind not in CONFIG_MAPPING:
        twin = _native_twin(name)
        hint = f"use {twin}" if twin else "look for its native twin, often the same name with -hf"
        raise ModelError(f"{name}: needs code from its repository, which is never run; {hint}")
    return AutoConfig.from_pretrained(source, trust_remote_code=False)


def _native_twin(name: str) -> str | None:
    """The id of the same weights for transformers' own code, where the authors publish it."""
    owner, _, model = name.partition("/")
    if owner == "OpenGVLab" and not model.endswith("-hf"):
        return f"{name}-hf"
    if owner == "liuhaotian" and model:
        return f"llava-hf/{model}-hf"
    return None


def _device(device: Device) -> torch.device:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there[device]:
        usable = ", ".join(name for name, is_there in there.items() if is_there)
        raise UsageError(f"no {device} device here; usable: {usable}")
    return torch.device(device)


def _dtype(dtype: Dtype, config: Any, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        chosen: torch.dtype = getattr(torch, dtype)
        return chosen
    stored = config.dtype or config.get_text_config().dtype
    own = stored if isinstance(stored, torch.dtype) else getattr(torch, stored or "float32")
    if device.type != "cpu" or own == torch.float32:
        return own
    return torch.bfloat16 if _fast_bfloat16() else torch.float32


def _fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware (AVX512-BF16 or AMX)."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The union of what generation config, config and tokenizer call the end of an answer."""
    stops: set[int] = set()
    text_config = model.config.get_text_config()
    for owner in (model.generation_config, model.config, text_config, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        stops.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(stops)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what transformers and the Hub raise into one line."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        cause: BaseException | None = error
        while cause is not None:
            for kind, reason in _REASONS.items():
                if isinstance(cause, kind):
                    raise ModelError(f"{name}: {reason}") from error
            cause = cause.__cause__ or cause.__context__
        line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(f"{name}: cannot be loaded: {line}") from error


_REASONS: dict[type[BaseException], str] = {
    hub_errors.GatedRepoError: "access must be asked for on huggingface.co, then `hf auth login`",
    hub_errors.RepositoryNotFoundError: "no such model on huggingface.co, and no such folder here",
    hub_errors.LocalEntryNotFoundError: "not in the local cache, and huggingface.co is unreachable",
    torch.OutOfMemoryError: "does not fit into the device's memory; try a smaller model",
}
