"""Configs of tiny vision-language models: two layers, a tower of a few patches."""

from transformers import (
    CLIPVisionConfig,
    Gemma2Config,
    Gemma3Config,
    GemmaConfig,
    Glm4vConfig,
    Idefics3Config,
    InternVLConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    Mistral3Config,
    MistralConfig,
    PaliGemmaConfig,
    PixtralVisionConfig,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen3VLConfig,
    SiglipVisionConfig,
    SmolVLMConfig,
)

from tests.models.text import gemma2_config, gemma_config, gemma_sizes
from tests.models.tiny import Ids, Json, text_sizes

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


def paligemma_config(ids: Ids, vocab_size: int) -> PaliGemmaConfig:
    return around_gemma(gemma_config(ids, vocab_size), ids)


def paligemma2_config(ids: Ids, vocab_size: int) -> PaliGemmaConfig:
    return around_gemma(gemma2_config(ids, vocab_size), ids)


def around_gemma(text: GemmaConfig | Gemma2Config, ids: Ids) -> PaliGemmaConfig:
    return PaliGemmaConfig(
        text_config=text,
        vision_config=SiglipVisionConfig(**TOWER, vision_use_head=False),
        image_token_index=ids["<image>"],
        vocab_size=text.vocab_size,
        projection_dim=text.hidden_size,
        hidden_size=text.hidden_size,
        tie_word_embeddings=False,
    )


def mistral3_config(ids: Ids, vocab_size: int) -> Mistral3Config:
    return Mistral3Config(
        text_config=MistralConfig(**text_sizes(vocab_size), sliding_window=None),
        vision_config=PixtralVisionConfig(**TOWER | {"image_size": 168}),
        image_token_index=ids["[IMG]"],
        tie_word_embeddings=False,
    )


def pixtral_config(ids: Ids, vocab_size: int) -> LlavaConfig:
    return LlavaConfig(
        text_config=MistralConfig(**text_sizes(vocab_size), sliding_window=None),
        vision_config=PixtralVisionConfig(**TOWER | {"image_size": 168}),
        image_token_index=ids["[IMG]"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
