"""Tiny vision-language models: one entry a family, with the processor's files as on the Hub."""

from collections.abc import Callable
from typing import Any

from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Glm4vConfig,
    Idefics3Config,
    InternVLConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    Mistral3Config,
    MistralConfig,
    PixtralVisionConfig,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen3VLConfig,
    SiglipVisionConfig,
    SmolVLMConfig,
)

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
from tests.models.text import gemma_sizes
from tests.models.tiny import Ids, Json, TinyFamily, text_sizes
from tests.models.tokenizers import byte_fallback_bpe

CLIP_NORMALISATION = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF_NORMALISATION = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SIDE = 56
"""Pixels of a square that a vision tower looks at: 4 x 4 patches."""
TOWER: Json = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 14,
}
TILES = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]  # LLaVA-NeXT's, a sixth as large


def idefics3_config(ids: Ids, vocab_size: int) -> Idefics3Config:
    return Idefics3Config(
        text_config=LlamaConfig(**text_sizes(vocab_size)),
        vision_config=TOWER,
        image_token_id=ids["<image>"],
    )


def smolvlm_config(ids: Ids, vocab_size: int) -> SmolVLMConfig:
    return SmolVLMConfig(
        text_config=LlamaConfig(**text_sizes(vocab_size)),
        vision_config=TOWER,
        image_token_id=ids["<image>"],
    )


def mrope_sizes(vocab_size: int) -> Json:
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    return text_sizes(vocab_size) | {"rope_parameters": rope}


def qwen_ids(ids: Ids) -> Json:
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def qwen2_vl_config(ids: Ids, vocab_size: int) -> Qwen2VLConfig:
    tower = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    return Qwen2VLConfig(text_config=mrope_sizes(vocab_size), vision_config=tower, **qwen_ids(ids))


def qwen2_5_vl_config(ids: Ids, vocab_size: int) -> Qwen2_5_VLConfig:
    return Qwen2_5_VLConfig(
        text_config=mrope_sizes(vocab_size),
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        **qwen_ids(ids),
    )


def qwen3_vl_config(ids: Ids, vocab_size: int) -> Qwen3VLConfig:
    return Qwen3VLConfig(
        text_config=mrope_sizes(vocab_size) | {"head_dim": 16},
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        **qwen_ids(ids),
    )


def glm4v_config(ids: Ids, vocab_size: int) -> Glm4vConfig:
    return Glm4vConfig(
        text_config=mrope_sizes(vocab_size),
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "image_size": SIDE,
        },
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
        video_start_token_id=ids["<|begin_of_video|>"],
        video_end_token_id=ids["<|end_of_video|>"],
    )


def llava_config(ids: Ids, vocab_size: int) -> LlavaConfig:
    return LlavaConfig(
        text_config=LlamaConfig(**text_sizes(vocab_size)),
        vision_config=CLIPVisionConfig(**TOWER, projection_dim=32),
        image_token_index=ids["<image>"],
        image_seq_length=16,
    )


def llava_next_config(ids: Ids, vocab_size: int) -> LlavaNextConfig:
    return LlavaNextConfig(
        text_config=MistralConfig(**text_sizes(vocab_size), sliding_window=None),
        vision_config=CLIPVisionConfig(**TOWER, projection_dim=32),
        image_token_index=ids["<image>"],
        image_grid_pinpoints=TILES,
    )


def llava_onevision_config(ids: Ids, vocab_size: int) -> LlavaOnevisionConfig:
    return LlavaOnevisionConfig(
        text_config=Qwen2Config(**text_sizes(vocab_size)),
        vision_config=SiglipVisionConfig(**TOWER, vision_use_head=False),
        image_token_index=ids["<image>"],
        video_token_index=ids["<video>"],
        image_grid_pinpoints=TILES,
    )


def internvl_config(ids: Ids, vocab_size: int) -> InternVLConfig:
    return InternVLConfig(
        text_config=Qwen2Config(**text_sizes(vocab_size)),
        vision_config=TOWER,
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=4,
        tie_word_embeddings=False,
    )


def gemma3_config(ids: Ids, vocab_size: int) -> Gemma3Config:
    return Gemma3Config(
        text_config=gemma_sizes(vocab_size),
        vision_config=SiglipVisionConfig(**TOWER, vision_use_head=False),
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
        tie_word_embeddings=False,
    )


def mistral3_config(ids: Ids, vocab_size: int) -> Mistral3Config:
    return Mistral3Config(
        text_config=MistralConfig(**text_sizes(vocab_size), sliding_window=None),
        vision_config=PixtralVisionConfig(**TOWER | {"image_size": 168}),
        image_token_index=ids["[IMG]"],
        tie_word_embeddings=False,
    )


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
    "mistral3": TinyFamily(
        mistral3_config,
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
                "spatial_merge_size": 2,
                "image_token": "[IMG]",
                "image_break_token": "[IMG_BREAK]",
                "image_end_token": "[IMG_END]",
            },
        },
    ),
}
