"""What differs between model families, as data: positions, placeholders, processor.

A family is one entry of `FAMILIES`, keyed by `config.model_type`, and is listed only when tests
with a tiny model of it show that its tokens equal `generate()`'s. Knows configs; loads nothing and
computes nothing.
"""

from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Family:
    """How models of one `model_type` differ from the others.

    Attributes:
        model_type: as in the model's config; one of `BY_PARTS` where that is not enough.
        name: as people call it.
        rope: how a token's rotary position follows from its index in the sequence. `text`: it is
            the index. `mrope`: three axes (time, height, width), for a text token all equal to
            index + `rope_deltas`, which the prefill of the prompt computes.
        processor: the processor's class in transformers; None for a text-only family.
        placeholders: the config's attributes that hold ids of image and video placeholders.
        image_token: what stands for one picture in a rendered prompt, before expansion.
        image_markup: a picture in a prompt that has no chat template to write it.
        image_rows: the processor's output that has one row a picture; empty where none has.
        first_position: the rotary position of the first token.
        causal: whether the prompt's texts see only what stands before them, and stay what they
            are to the model when more is added.
        long_rope: whether rotary frequencies are others, for all tokens, in a text that is longer
            than what the model was first trained on.
        layout: a chat template for models that come without one, which writes special tokens too.
    """

    model_type: str
    name: str
    rope: Literal["text", "mrope"] = "text"
    processor: str | None = None
    placeholders: tuple[str, ...] = ()
    image_token: str = ""
    image_markup: str = ""
    image_rows: str = ""
    first_position: int = 0
    causal: bool = True
    long_rope: bool = False
    layout: str = ""

    @property
    def vision(self) -> bool:
        """Whether models of this family look at pictures."""
        return self.processor is not None

    def placeholder_ids(self, config: Any) -> frozenset[int]:
        """Ids that stand for image or video features: never drafted, keyed or matched."""
        return frozenset(getattr(config, name) for name in self.placeholders)

    def short_length(self, config: Any) -> int | None:
        """The longest text with the rotary frequencies of short texts; None where all have them."""
        if not self.long_rope:
            return None
        return int(config.get_text_config().rope_parameters["original_max_position_embeddings"])


QWEN_MARKUP = "<|vision_start|><|image_pad|><|vision_end|>"


def _qwen(model_type: str, name: str, processor: str) -> Family:
    return Family(
        model_type,
        name,
        rope="mrope",
        processor=processor,
        placeholders=("image_token_id", "video_token_id"),
        image_token="<|image_pad|>",
        image_markup=QWEN_MARKUP,
        image_rows="image_grid_thw",
    )


def _llava(model_type: str, name: str, processor: str, rows: str, *video: str) -> Family:
    return Family(
        model_type,
        name,
        processor=processor,
        placeholders=("image_token_index", *video),
        image_token="<image>",
        image_markup="<image>\n",
        image_rows=rows,
    )


def _idefics(model_type: str, name: str, processor: str) -> Family:
    return Family(
        model_type,
        name,
        processor=processor,
        placeholders=("image_token_id",),
        image_token="<image>",
        image_markup="<image>",
    )


# As PaliGemma's processor writes a prompt: pictures, begin token, text, newline.
PALIGEMMA_LAYOUT = (
    "{%- for message in messages -%}"
    "{%- for part in message.content if part.type == 'image' -%}{{- '<image>' -}}{%- endfor -%}"
    "{%- endfor -%}"
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '' if loop.first else '\n\n' -}}"
    "{%- for part in message.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}"
    "{%- endfor -%}"
    "{{- '\n' -}}"
)


def _pixtral(model_type: str, name: str) -> Family:
    return Family(
        model_type,
        name,
        processor="PixtralProcessor",
        placeholders=("image_token_index",),
        image_token="[IMG]",
        image_markup="[IMG]",
        image_rows="image_sizes",
    )


def _paligemma(model_type: str, name: str) -> Family:
    return Family(
        model_type,
        name,
        processor="PaliGemmaProcessor",
        placeholders=("image_token_index",),
        image_token="<image>",
        image_markup="<image>",
        image_rows="pixel_values",
        first_position=1,
        causal=False,
        layout=PALIGEMMA_LAYOUT,
    )


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        _idefics("smolvlm", "SmolVLM2", "SmolVLMProcessor"),
        _idefics("idefics3", "Idefics3 and SmolVLM", "Idefics3Processor"),
        _qwen("qwen2_vl", "Qwen2-VL", "Qwen2VLProcessor"),
        _qwen("qwen2_5_vl", "Qwen2.5-VL", "Qwen2_5_VLProcessor"),
        _qwen("qwen3_vl", "Qwen3-VL", "Qwen3VLProcessor"),
        _llava("llava", "LLaVA-1.5", "LlavaProcessor", "pixel_values"),
        _llava("llava_next", "LLaVA-NeXT", "LlavaNextProcessor", "image_sizes"),
        _llava(
            "llava_onevision",
            "LLaVA-OneVision",
            "LlavaOnevisionProcessor",
            "image_sizes",
            "video_token_index",
        ),
        Family(
            "gemma3",
            "Gemma 3",
            processor="Gemma3Processor",
            placeholders=("image_token_index",),
            image_token="<start_of_image>",
            image_markup="<start_of_image>",
            image_rows="pixel_values",
        ),
        Family(
            "internvl",
            "InternVL",
            processor="InternVLProcessor",
            placeholders=("image_token_id",),
            image_token="<IMG_CONTEXT>",
            image_markup="<IMG_CONTEXT>\n",
        ),
        _paligemma("paligemma", "PaliGemma"),
        _paligemma("paligemma2", "PaliGemma 2"),
        _pixtral("mistral3", "Mistral Small 3"),
        _pixtral("pixtral", "Pixtral"),
        Family(
            "glm4v",
            "GLM-4.1V",
            rope="mrope",
            processor="Glm4vProcessor",
            placeholders=("image_token_id", "video_token_id"),
            image_token="<|image|>",
            image_markup="<|begin_of_image|><|image|><|end_of_image|>",
            image_rows="image_grid_thw",
        ),
        Family("llama", "Llama"),
        Family("qwen2", "Qwen2"),
        Family("qwen3", "Qwen3"),
        Family("mistral", "Mistral"),
        Family("gemma", "Gemma"),
        Family("gemma2", "Gemma 2"),
        Family("gemma3_text", "Gemma 3 text"),
        Family("phi3", "Phi-3"),
        Family("phi3_long", "Phi-3 and Phi-4 with longrope", causal=False, long_rope=True),
    )
}

# Of one model type and yet two families, told apart by a setting: model type, part of the config,
# key and value in it -> the family.
BY_PARTS = {
    ("llava", "vision_config", "model_type", "pixtral"): "pixtral",
    ("paligemma", "text_config", "model_type", "gemma2"): "paligemma2",
    ("phi3", "rope_parameters", "rope_type", "longrope"): "phi3_long",
}

# Layers that keep every token's keys and values. Others fold what they read into a state, from
# which a rejected draft cannot be taken back.
ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
RECURRENT = frozenset({"lfm2_moe", "recurrent_gemma", "rwkv", "xlstm"})  # not told by `layer_types`


def sees(name: str) -> bool:
    """Whether a weight of this name is a vision tower's."""
    return "vision" in name or "visual" in name


def family_of(config: Any) -> Family:
    """The family of a model, by its config; asked before the weights are loaded.

    Raises:
        UnsupportedModel: no family for this model; the message says why.
    """
    family = FAMILIES.get(_kind(config))
    refusal = _refusal(config, family)
    if family is not None and refusal is None:
        return family
    known = ", ".join(family.name for family in FAMILIES.values())
    raise UnsupportedModel(f"{refusal}; choose a model of one of these families: {known}")


def _kind(config: Any) -> str:
    """A key of `FAMILIES`, or a model type that is none."""
    kind: str = config.model_type
    for (whole, part, key, value), family in BY_PARTS.items():
        if kind == whole and _settings(getattr(config, part)).get(key) == value:
            return family
    return kind


def _settings(part: Any) -> dict[str, Any]:
    settings: dict[str, Any] = part if isinstance(part, dict) else part.to_dict()
    return settings


def _refusal(config: Any, family: Family | None) -> str | None:
    kind, text = config.model_type, config.get_text_config()
    layers = getattr(text, "layer_types", None) or ()
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind} models are encoder-decoders, which cannot verify a draft tree"
    if kind in RECURRENT or not ATTENTION_LAYERS.issuperset(layers):
        return f"{kind} models keep a recurrent state, which cannot take back a draft"
    if family is None:
        return f"{kind} models have not been tested with recap"
    # A vision model's language model is of a text-only family, or its own.
    if text.model_type not in FAMILIES and text.model_type.removesuffix("_text") != kind:
        return f"{kind} models around {text.model_type} have not been tested with recap"
    if not family.long_rope and "longrope" in str(getattr(text, "rope_parameters", None)):
        return f"{kind} models with longrope have not been tested with recap"
    return None
