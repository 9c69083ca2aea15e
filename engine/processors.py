"""Loads a model's tokenizer and processor through transformers, the same way on every machine.

Pictures always go through the Pillow backend, whatever else is installed, so that the same picture
gives the same numbers everywhere; nothing asks for torchvision. A repository's code is never run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

# Not from the top level, where transformers 5.17 hides it behind torchvision without need.
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from engine.errors import ModelError
from engine.families import Family


@dataclass(frozen=True, slots=True)
class Processor:
    """What turns text, and for a vision model pictures, into a model's inputs.

    Attributes:
        tokenizer: transformers' tokenizer, backed by the `tokenizers` library.
        multimodal: transformers' processor around it; None for a text-only family.
    """

    tokenizer: Any
    multimodal: Any | None = None


def load_processor(source: str | Path, family: Family, **hub: Any) -> Processor:
    """Load tokenizer and processor of a model.

    Args:
        source: a model folder, which needs no network, or a Hugging Face id.
        family: the model's family.
        hub: `revision`, `token`, `cache_dir`, `local_files_only`, as `from_pretrained` takes them.

    Raises:
        ModelError: a file is missing or broken, or the repository wants to run code of its own.
    """
    try:
        processor = _load(str(source), family, hub)
    except Exception as error:  # the tokenizers library raises bare exceptions
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(f"{source}: tokenizer or processor cannot be loaded: {reason}") from error
    # Where all files are missing, transformers makes a tokenizer of one token and says nothing.
    if not processor.tokenizer.is_fast or len(processor.tokenizer) < 256:
        raise ModelError(f"{source}: has no tokenizer.json, which recap needs")
    return processor


def _load(source: str, family: Family, hub: dict[str, Any]) -> Processor:
    hub = hub | {"trust_remote_code": False}  # transformers' own default asks on the terminal
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **hub)
    if family.processor is None:
        return Processor(tokenizer)
    images = AutoImageProcessor.from_pretrained(source, backend="pil", **hub)
    processor_class = _without_video(getattr(transformers, family.processor))
    settings, _ = processor_class.get_processor_dict(source, **hub)
    settings.pop("video_processor", None)
    return Processor(tokenizer, processor_class.from_args_and_dict([images, tokenizer], settings))


def _without_video(processor_class: Any) -> Any:
    """The same processor, made of an image processor and a tokenizer only.

    Processors that also take videos demand a video processor, and that demands torchvision.
    """
    parts = [part for part in processor_class.get_attributes() if part != "video_processor"]
    members = {"get_attributes": classmethod(lambda _: list(parts))}
    return type(processor_class.__name__, (processor_class,), members)
