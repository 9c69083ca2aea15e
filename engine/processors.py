"""Loads a model's tokenizer and processor through transformers, the same way on every machine.

Pictures always go through the Pillow backend, whatever else is installed, so that the same picture
gives the same numbers everywhere; nothing asks for torchvision. A repository's code is never run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import ProcessorMixin

# Not from the top level, where transformers 5.17 hides it behind torchvision without need.
from transformers.models.auto.image_processing_auto import AutoImageProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

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
    own_code = {"trust_remote_code": False}  # transformers' own default asks on the terminal
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **own_code, **hub)
    if family.processor is None:
        return Processor(tokenizer)
    if family.model_type in _HIDDEN:
        images = _HIDDEN[family.model_type].from_pretrained(source, **hub)
    else:
        images = AutoImageProcessor.from_pretrained(source, backend="pil", **own_code, **hub)
    processor_class = _processor_class(family.processor)
    settings, _ = processor_class.get_processor_dict(source, **hub)
    settings.pop("video_processor", None)
    return Processor(tokenizer, processor_class.from_args_and_dict([images, tokenizer], settings))


# As with `AutoImageProcessor` itself, 5.17 hides these although they need no torchvision.
_HIDDEN = {"idefics3": Idefics3ImageProcessorPil, "smolvlm": SmolVLMImageProcessorPil}


def _processor_class(name: str) -> Any:
    """The processor's class, made of an image processor and a tokenizer only.

    Processors that also take videos demand a video processor, and that demands torchvision.
    """
    if name == PixtralProcessor.__name__:
        return PixtralProcessor
    theirs = getattr(transformers, name)
    parts = [part for part in theirs.get_attributes() if part != "video_processor"]
    members: dict[str, Any] = {"get_attributes": classmethod(lambda _: list(parts))}
    if name == "PaliGemmaProcessor":
        members |= _PALIGEMMA
    if name == "SmolVLMProcessor":
        members["__init__"] = _init_smolvlm
    if name == "Glm4vProcessor":  # which gives rows of a tensor to NumPy as it no longer wants them
        members["create_mm_token_type_ids"] = lambda self, ids: theirs.create_mm_token_type_ids(
            self, torch.as_tensor(ids).tolist()
        )
    return type(name, (theirs,), members)


def _call_paligemma(self: Any, **inputs: Any) -> Any:
    """A prompt in the family's own layout, with pictures or without; all of it is prefix."""
    encoded = ProcessorMixin.__call__(self, **inputs)
    encoded["token_type_ids"] = torch.zeros_like(encoded["input_ids"])
    return encoded


# Theirs demands a picture, writes the layout itself, and adds labels to train with.
_PALIGEMMA = {
    "__call__": _call_paligemma,
    "prepare_inputs_layout": ProcessorMixin.prepare_inputs_layout,
    "validate_inputs": ProcessorMixin.validate_inputs,
}


def _init_smolvlm(
    self: Any,
    image_processor: Any,
    tokenizer: Any,
    image_seq_len: int = 169,
    chat_template: str | None = None,
    **settings: Any,
) -> None:
    """SmolVLM's own initialiser asks for a package that spells out the lengths of videos."""
    ProcessorMixin.__init__(
        self, image_processor, tokenizer, chat_template=chat_template, **settings
    )
    for name, usual in _SMOLVLM_TOKENS.items():
        setattr(self, name, getattr(tokenizer, name, usual))
    self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
    self.image_seq_len = image_seq_len


_SMOLVLM_TOKENS = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "end_of_utterance_token": "<end_of_utterance>",
    "global_image_token": "<global-img>",
    "video_token": "<video>",
}


class PixtralProcessor(ProcessorMixin):  # type: ignore[misc]  # transformers is not typed
    """Stands in for transformers' own, whose module cannot be imported without torchvision.

    A picture of h x w merged patches becomes h rows of w placeholders; a break token ends each row
    but the last, which the end token ends.
    """

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
        **_: Any,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = image_token
        self.image_token_id = tokenizer.convert_tokens_to_ids(image_token)
        self._merged_patch = image_processor.patch_size = patch_size * spatial_merge_size
        self._break, self._end = image_break_token, image_end_token

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        """What a picture's one placeholder is expanded to."""
        height, width = image_inputs["image_sizes"][image_idx]
        row = self.image_token * (int(width) // self._merged_patch)
        return self._break.join([row] * (int(height) // self._merged_patch)) + self._end
