"""Finds and loads a model: name, device, dtype, family, weights, prompt encoder.

Every way in which that fails becomes one line. Code from a model's repository is never run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import constants, get_session
from huggingface_hub import errors as hub_errors
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.logging import disable_progress_bar

from engine.attention import NAME as TREE_ATTENTION
from engine.catalogue import resolved
from engine.demo import MODEL_DIR
from engine.device_memory import ran_out
from engine.errors import ModelError, RecapError, UsageError
from engine.families import Family, family_of, sees
from engine.files import user_path
from engine.narrowing import holds, narrow_dtype, narrowed
from engine.packages import ACCELERATE, is_quantised, require
from engine.packing import fast_bfloat16, pack, worth_laying_out, worth_packing
from engine.processors import load_processor
from engine.prompts import PromptEncoder

Device = Literal["auto", "cpu", "cuda", "mps"]
DeviceMap = Literal["auto", "balanced", "sequential"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

PROBE_S = 5.0
"""Longest wait for an answer of the Hub, before what is in the local cache has to do."""

DEMO_MODEL = "demo"


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads a model's prompts: all of the model but its weights.

    Attributes:
        name: folder, `demo`, or id on the Hub.
        source: where transformers finds it.
        hub: how the Hub is asked, as `from_pretrained` takes it; empty for a folder.
        config: the model's config.
        family: how it differs from others.
        encoder: turns conversations into its inputs.
    """

    name: str
    source: str
    hub: dict[str, Any]
    config: Any
    family: Family
    encoder: PromptEncoder

    @property
    def context_length(self) -> int | None:
        """Tokens that the model can attend to; None where its config does not say."""
        length: int | None = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return length


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to answer.

    Attributes:
        name: folder, `demo`, or id on the Hub.
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


def load_reader(name: str) -> Reader:
    """Load config and processor of a model, named by `demo`, folder, Hugging Face id or alias.

    Without network, or where the Hub does not answer within seconds, the local cache has to do.

    Raises:
        ModelError: the model cannot be found, or its family is not supported.
    """
    name, source, hub = _located(name)
    with explained(name, hub):
        config = _config(name, source, hub)
        family = family_of(config)
        encoder = PromptEncoder(load_processor(source, family, **hub), family, config)
    return Reader(name, source, hub, config, family, encoder)


def load_config(name: str) -> Any:
    """The config of a model, named as `load_reader` takes it, or a config.json alone.

    Raises:
        ModelError: the config cannot be found or read.
    """
    file = user_path(name)
    name, source, hub = (name, str(file), {}) if file.is_file() else _located(name)
    with explained(name, hub):
        return _config(name, source, hub)


def load_model(
    name: str,
    device: Device = "auto",
    dtype: Dtype = "auto",
    device_map: DeviceMap | None = None,
    *,
    spare: bool = False,
) -> LoadedModel:
    """Load a model, named as `load_reader` takes it.

    `auto` picks CUDA, then Apple's MPS, then the CPU; and of dtypes the checkpoint's own, except
    that a CPU without bfloat16 instructions, and the demo model, which is too small to gain from
    them, compute in float32. With a device map accelerate spreads the layers over all devices.
    On a CPU a model is packed where that pays (`engine.packing`), with `spare` if asked; under
    floats, weights stay in half precision where they can (`engine.narrowing`).

    Raises:
        UsageError: the device is not there, or is named although a device map chooses.
        ModelError: the model cannot be found or loaded, its family is not supported, or a package
            that it needs is not installed.
    """
    if device_map and device != "auto":
        raise UsageError(f"--device {device} and --device-map exclude each other")
    place = device_named(device)
    if device_map:
        require("--device-map", [ACCELERATE])
    reader = load_reader(name)
    with explained(reader.name, reader.hub):
        model = _weights(reader, place, dtype, device_map, spare=spare)
    return LoadedModel(
        name=reader.name,
        model=model,
        family=reader.family,
        encoder=reader.encoder,
        stop_ids=_stop_ids(model, reader.encoder.tokenizer),
        context_length=reader.context_length,
    )


def _weights(
    reader: Reader, place: torch.device, dtype: Dtype, device_map: str | None, *, spare: bool
) -> Any:
    """The model on its device, in eval mode."""
    vision, config = reader.family.vision, reader.config
    quantised = is_quantised(reader.name, config)
    demo = reader.name == DEMO_MODEL
    computed = torch.float32 if demo and dtype == "auto" else dtype_named(dtype, config, place)
    options: dict[str, Any] = {
        "config": config,
        "dtype": computed,
        "attn_implementation": {"text_config": TREE_ATTENTION} if vision else TREE_ATTENTION,
        "trust_remote_code": False,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # refused below, by name
        **reader.hub,
    }
    if device_map or quantised:
        options["device_map"] = device_map or {"": place}
    disable_progress_bar()  # of reading weights; a download's is the Hub's own and stays
    auto: Any = AutoModelForImageTextToText if vision else AutoModelForCausalLM

    def load(kind: Any) -> Any:
        model, loaded = kind.from_pretrained(reader.source, **options)
        _check_complete(reader.name, loaded)
        return model.eval()

    if device_map or quantised:
        return load(auto)
    narrow = narrow_dtype(own_dtype(config), computed, place)
    if narrow and holds(reader.source, narrow) is not False:
        classes = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if vision else MODEL_FOR_CAUSAL_LM_MAPPING
        model = load(auto if spare else narrowed(classes[type(config)], narrow))
        if holds(reader.source, narrow):
            pack(model, spare=spare, narrow=narrow)
            return model
        del model  # the files, which are here now, hold something else, or do not tell
    model = load(auto).to(place)
    if worth_packing(model):
        pack(model, spare=spare, lay_out=worth_laying_out(model))
    return model


def _check_complete(name: str, loaded: dict[str, Any]) -> None:
    """Refuse what transformers only warns of: weights that it filled with random numbers.

    Vision towers are published without layers that nobody reads; that they lack some is no fault.
    """
    missing = [key for key in loaded["missing_keys"] if not sees(key)]
    wrong = sorted(missing) + sorted(key for key, *_ in loaded["mismatched_keys"])
    if wrong:
        rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ModelError(
            f"{name}: weights are missing or have another shape than the config says: "
            f"{wrong[0]}{rest}"
        )


def _hub_answers() -> bool:
    """Whether the Hub can be reached: asked once, as its client tries for half a minute a file."""
    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_S)
    except Exception:  # which HTTP library raises depends on the Hub's version
        return False
    return True


def _located(name: str) -> tuple[str, str, dict[str, Any]]:
    """A model's name in full, where transformers finds it, and how the Hub is asked."""
    name = resolved(name)
    source = str(MODEL_DIR) if name == DEMO_MODEL else _source(name)
    return name, source, {} if Path(source).is_dir() else {"local_files_only": not _hub_answers()}


def _source(name: str) -> str:
    """A folder as it stands, or an id for the Hub."""
    if not name:
        raise ModelError("the model's name is empty: give a folder or a Hugging Face id")
    folder = user_path(name)
    if folder.is_dir():
        return str(folder)
    if folder.exists():
        raise ModelError(f"{name}: a model is a folder or a Hugging Face id, and this is a file")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: there is no such folder")
    return name


def _config(name: str, source: str, hub: dict[str, Any]) -> Any:
    """The model's config; refuses a repository whose model is code of its own."""
    settings, _ = PreTrainedConfig.get_config_dict(source, **hub)
    kind = settings.get("model_type")
    if "auto_map" in settings and kind not in CONFIG_MAPPING:
        twin = _native_twin(name)
        hint = f"use {twin}" if twin else "look for its native twin, often the same name with -hf"
        raise ModelError(f"{name}: needs code from its repository, which is never run; {hint}")
    return AutoConfig.from_pretrained(source, trust_remote_code=False, **hub)


def _native_twin(name: str) -> str | None:
    """The id of the same weights for transformers' own code, where the authors publish it."""
    owner, _, model = name.partition("/")
    if owner == "OpenGVLab" and not model.endswith("-hf"):
        return f"{name}-hf"
    if owner == "liuhaotian" and model:
        return f"llava-hf/{model}-hf"
    return None


def device_named(device: Device) -> torch.device:
    """The device of this name; `auto` is the fastest kind that is there.

    Raises:
        UsageError: it is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there[device]:
        usable = ", ".join(name for name, is_there in there.items() if is_there)
        raise UsageError(f"no {device} device here; usable: {usable}")
    return torch.device(device)


def dtype_named(dtype: Dtype, config: Any, device: torch.device) -> torch.dtype:
    """The dtype of this name; `auto` is the config's own, unless the CPU is slow with it."""
    if dtype != "auto":
        chosen: torch.dtype = getattr(torch, dtype)
        return chosen
    own = own_dtype(config)
    if device.type != "cpu" or own == torch.float32:
        return own
    return torch.bfloat16 if fast_bfloat16() else torch.float32


def own_dtype(config: Any) -> torch.dtype:
    """The checkpoint's, as its config has it."""
    stored = config.dtype or config.get_text_config().dtype
    return stored if isinstance(stored, torch.dtype) else getattr(torch, stored or "float32")


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The union of what generation config, config and tokenizer call the end of an answer."""
    stops: set[int] = set()
    text_config = model.config.get_text_config()
    for owner in (model.generation_config, model.config, text_config, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        stops.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(stops)


@contextmanager
def explained(name: str, hub: dict[str, Any]) -> Iterator[None]:
    """Turn what transformers and the Hub raise into one line."""
    try:
        yield
    except RecapError:
        raise
    except Exception as error:  # also those of the HTTP library, which varies with the Hub's client
        cause: BaseException | None = error
        while cause is not None:
            if ran_out(cause):
                raise ModelError(f"{name}: {_TOO_LARGE}") from error
            for kind, reason in _REASONS.items():
                if isinstance(cause, kind):
                    raise ModelError(f"{name}: {reason}") from error
            cause = cause.__cause__ or cause.__context__
        what = "" if isinstance(error, _PLAIN) else f"{type(error).__name__}: "
        line = str(error).strip().partition("\n")[0]
        only = "; huggingface.co is unreachable" if hub.get("local_files_only") else ""
        raise ModelError(f"{name}: cannot be loaded: {what}{line}{only}") from error


_PLAIN = (OSError, ValueError, RuntimeError, ImportError)  # their messages say what is wrong


_TOO_LARGE = "does not fit into the device's memory; try a smaller model"

_REASONS: dict[type[BaseException], str] = {
    hub_errors.GatedRepoError: "access must be asked for on huggingface.co, then `hf auth login`",
    hub_errors.RepositoryNotFoundError: "no such model on huggingface.co, and no such folder here",
    hub_errors.LocalEntryNotFoundError: "not in the local cache, and huggingface.co is unreachable",
    hub_errors.HFValidationError: "neither a folder here nor a name that huggingface.co could have",
    SafetensorError: "a file of its weights is damaged or cut short; download it again",
}
