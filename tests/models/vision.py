"""Tiny vision-language models: one entry a family, with the processor's files as on the Hub."""

from collections.abc import Callable
from typing import Any

from tests.models.templates import (
    CHATML,
    GEMMA,
    GLM,
    IDEFICS,
    INTERNVL,
    MISTRAL,
    MISTRAL_LLAVA,
    ONEVISION,
    VICUNA,
)
from tests.models.tiny import Ids, Json, TinyFamily
from tests.models.tokenizers import byte_fallback_bpe
from tests.models.vision_configs import (
    SIDE,
    TILES,
    gemma3_config,
    glm4v_config,
    idefics3_config,
    internvl_config,
    llava_config,
    llava_next_config,
    llava_onevision_config,
    mistral3_config,
    paligemma2_config,
    paligemma_config,
    pixtral_config,
    qwen2_5_vl_config,
    qwen2_vl_config,
    qwen3_vl_config,
    smolvlm_config,
)

CLIP_NORMALISATION = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF_NORMALISATION = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TILE_NAMES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4))


QWEN2_NUMBERS: Json = {
    "min_pixels": 56 * 56,
    "max_pixels": 28 * 28 * 100,
    "patch_size": 14,
    **CLIP_NORMALISATION,
}


def qwen_family(
    config: Callable[[Ids, int], Any],
    processor: str,
    numbers: Json,
    seed: int = 0,
) -> TinyFamily:
    return TinyFamily(
        config,
        (*QWEN_SPECIAL, *QWEN_VISION),
        stop=("<|im_end|>", "<|endoftext|>"),
        chat_template=CHATML,
        placeholders=("<|image_pad|>", "<|video_pad|>"),
        seed=seed,
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": processor,
                "temporal_patch_size": 2,
                "merge_size": 2,
                **numbers,
            }
        },
    )


def pixtral_family(config: Callable[[Ids, int], Any], spatial_merge_size: int) -> TinyFamily:
    return TinyFamily(
        config,
        (
            *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
            *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        ),
        stop=("</s>",),
        chat_template=MISTRAL,
        begin="<s>",
        placeholders=("[IMG]",),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "PixtralImageProcessor",
                "processor_class": "PixtralProcessor",
                "patch_size": 14,
                "size": {"longest_edge": 3 * SIDE},
                **CLIP_NORMALISATION,
            },
            "processor_config.json": {
                "processor_class": "PixtralProcessor",
                "patch_size": 14,
                "spatial_merge_size": spatial_merge_size,
                "image_token": "[IMG]",
                "image_break_token": "[IMG_BREAK]",
                "image_end_token": "[IMG_END]",
            },
        },
    )


def paligemma_family(config: Callable[[Ids, int], Any]) -> TinyFamily:
    return TinyFamily(
        config,
        ("<pad>", "<eos>", "<bos>", "<unk>", "<image>"),
        stop=("<eos>",),
        chat_template=None,
        begin="<bos>",
        named={"image_token": "<image>"},
        placeholders=("<image>",),
        flexible=False,
        files={
            "preprocessor_config.json": {
                "image_processor_type": "SiglipImageProcessor",
                "processor_class": "PaliGemmaProcessor",
                "size": {"height": SIDE, "width": SIDE},
                "image_seq_length": 16,
                **HALF_NORMALISATION,
            }
        },
    )


def idefics_files(processor: str, image_processor: str) -> dict[str, Json]:
    return {
        "preprocessor_config.json": {
            "image_processor_type": image_processor,
            "processor_class": processor,
            "size": {"longest_edge": 3 * SIDE},
            "max_image_size": {"longest_edge": SIDE},
            "do_image_splitting": True,
            "do_pad": True,
            **HALF_NORMALISATION,
        },
        "processor_config.json": {"processor_class": processor, "image_seq_len": 4},
    }


VISION: dict[str, TinyFamily] = {
    "smolvlm": TinyFamily(
        smolvlm_config,
        (
            *("<|endoftext|>", "<|im_start|>", "<end_of_utterance>"),
            *("<fake_token_around_image>", "<image>", "<global-img>", *TILE_NAMES),
        ),
        stop=("<end_of_utterance>", "<|endoftext|>"),
        chat_template="<|im_start|>" + IDEFICS,
        placeholders=("<image>",),
        files=idefics_files("SmolVLMProcessor", "SmolVLMImageProcessor"),
    ),
    "idefics3": TinyFamily(
        idefics3_config,
        (
            *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
            *("<fake_token_around_image>", "<image>", "<end_of_utterance>"),
        ),
        stop=("<|end_of_text|>", "<end_of_utterance>", "<|eot_id|>"),
        chat_template="<|begin_of_text|>" + IDEFICS,
        begin="<|begin_of_text|>",
        placeholders=("<image>",),
        files=idefics_files("Idefics3Processor", "Idefics3ImageProcessor"),
    ),
    "qwen2_vl": qwen_family(qwen2_vl_config, "Qwen2VLProcessor", QWEN2_NUMBERS, seed=1),
    "qwen2_5_vl": qwen_family(qwen2_5_vl_config, "Qwen2_5_VLProcessor", QWEN2_NUMBERS),
    "qwen3_vl": qwen_family(
        qwen3_vl_config,
        "Qwen3VLProcessor",
        {
            "size": {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 100},
            "patch_size": 16,
            **HALF_NORMALISATION,
        },
    ),
    "glm4v": TinyFamily(
        glm4v_config,
        (
            *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
            *("<|image|>", "<|begin_of_image|>", "<|end_of_image|>"),
            *("<|video|>", "<|begin_of_video|>", "<|end_of_video|>"),
        ),
        stop=("<|user|>", "<|endoftext|>"),
        chat_template=GLM,
        placeholders=("<|image|>", "<|video|>"),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Glm4vImageProcessor",
                "processor_class": "Glm4vProcessor",
                "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 100},
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                **CLIP_NORMALISATION,
            }
        },
    ),
    "llava": TinyFamily(
        llava_config,
        ("<unk>", "<s>", "</s>", "<image>", "<pad>"),
        stop=("</s>",),
        chat_template=VICUNA,
        bpe=byte_fallback_bpe,
        begin="<s>",
        named={"image_token": "<image>"},
        placeholders=("<image>",),
        flexible=False,
        files={
            "preprocessor_config.json": {
                "image_processor_type": "CLIPImageProcessor",
                "processor_class": "LlavaProcessor",
                "size": {"shortest_edge": SIDE},
                "crop_size": {"height": SIDE, "width": SIDE},
                **CLIP_NORMALISATION,
            },
            "processor_config.json": {
                "processor_class": "LlavaProcessor",
                "image_token": "<image>",
                "num_additional_image_tokens": 1,
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
            },
        },
    ),
    "llava_next": TinyFamily(
        llava_next_config,
        ("<unk>", "<s>", "</s>", "<image>", "<pad>"),
        stop=("</s>",),
        chat_template=MISTRAL_LLAVA,
        bpe=byte_fallback_bpe,
        begin="<s>",
        named={"image_token": "<image>"},
        placeholders=("<image>",),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "LlavaNextImageProcessor",
                "processor_class": "LlavaNextProcessor",
                "size": {"shortest_edge": SIDE},
                "crop_size": {"height": SIDE, "width": SIDE},
                "image_grid_pinpoints": TILES,
                "aspect_ratio_setting": "anyres",
                **CLIP_NORMALISATION,
            },
            "processor_config.json": {
                "processor_class": "LlavaNextProcessor",
                "image_token": "<image>",
                "num_additional_image_tokens": 1,
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
            },
        },
    ),
    "llava_onevision": TinyFamily(
        llava_onevision_config,
        (*QWEN_SPECIAL, "<image>", "<video>"),
        stop=("<|im_end|>", "<|endoftext|>"),
        chat_template=ONEVISION,
        placeholders=("<image>", "<video>"),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "LlavaOnevisionImageProcessor",
                "processor_class": "LlavaOnevisionProcessor",
                "size": {"height": SIDE, "width": SIDE},
                "image_grid_pinpoints": TILES,
                **HALF_NORMALISATION,
            },
            "processor_config.json": {
                "processor_class": "LlavaOnevisionProcessor",
                "image_token": "<image>",
                "num_image_tokens": 16,
                "video_token": "<video>",
                "vision_feature_select_strategy": "full",
            },
        },
    ),
    "internvl": TinyFamily(
        internvl_config,
        (*QWEN_SPECIAL, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        stop=("<|im_end|>", "<|endoftext|>"),
        chat_template=INTERNVL,
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        placeholders=("<IMG_CONTEXT>",),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "GotOcr2ImageProcessor",
                "processor_class": "InternVLProcessor",
                "size": {"height": SIDE, "width": SIDE},
                "crop_to_patches": False,
                "min_patches": 1,
                "max_patches": 4,
                **CLIP_NORMALISATION,
            },
            "processor_config.json": {
                "processor_class": "InternVLProcessor",
                "image_seq_length": 4,
            },
        },
    ),
    "gemma3": TinyFamily(
        gemma3_config,
        (
            *("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
            *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        ),
        stop=("<end_of_turn>", "<eos>"),
        chat_template=GEMMA,
        begin="<bos>",
        named={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        placeholders=("<image_soft_token>",),
        flexible=False,
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Gemma3ImageProcessor",
                "processor_class": "Gemma3Processor",
                "size": {"height": SIDE, "width": SIDE},
                "do_pan_and_scan": None,
                **HALF_NORMALISATION,
            },
            "processor_config.json": {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        },
    ),
    "paligemma": paligemma_family(paligemma_config),
    "paligemma2": paligemma_family(paligemma2_config),
    "mistral3": pixtral_family(mistral3_config, spatial_merge_size=2),
    "pixtral": pixtral_family(pixtral_config, spatial_merge_size=1),
}
