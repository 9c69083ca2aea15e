"""Tiny text-only models: one entry a family."""

from collections.abc import Callable

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from tests.models.templates import CHATML, GEMMA, LLAMA_3, MISTRAL, PHI_3
from tests.models.tiny import Ids, Json, TinyFamily, text_sizes
from tests.models.tokenizers import byte_fallback_bpe

WINDOW = 16
"""Tokens that a sliding-window layer sees: fewer than every prompt has."""
SHORT = 16
"""Tokens of a text with the frequencies of short ones: fewer than nearly every prompt has."""


def gemma_sizes(vocab_size: int) -> Json:
    """Layers of both kinds."""
    return text_sizes(vocab_size) | {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    }


def llama_config(ids: Ids, vocab_size: int) -> LlamaConfig:
    return LlamaConfig(**text_sizes(vocab_size))


def qwen2_config(ids: Ids, vocab_size: int) -> Qwen2Config:
    return Qwen2Config(**text_sizes(vocab_size))


def qwen3_config(ids: Ids, vocab_size: int) -> Qwen3Config:
    return Qwen3Config(**text_sizes(vocab_size), head_dim=16)


def mistral_config(ids: Ids, vocab_size: int) -> MistralConfig:
    return MistralConfig(**text_sizes(vocab_size), sliding_window=WINDOW)


def gemma_config(ids: Ids, vocab_size: int) -> GemmaConfig:
    return GemmaConfig(**text_sizes(vocab_size), head_dim=16)


def gemma2_config(ids: Ids, vocab_size: int) -> Gemma2Config:
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 10.0}
    return Gemma2Config(**gemma_sizes(vocab_size), **caps)


def gemma3_text_config(ids: Ids, vocab_size: int) -> Gemma3TextConfig:
    return Gemma3TextConfig(**gemma_sizes(vocab_size))


def phi3_config(ids: Ids, vocab_size: int) -> Phi3Config:
    sizes = text_sizes(vocab_size) | {"original_max_position_embeddings": 4096}
    return Phi3Config(**sizes, sliding_window=WINDOW, pad_token_id=0)


def phi3_long_config(ids: Ids, vocab_size: int) -> Phi3Config:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + pair / 8 for pair in range(8)],
        "long_factor": [2.0 + pair for pair in range(8)],
    }
    length = {"original_max_position_embeddings": SHORT}
    return Phi3Config(**text_sizes(vocab_size), **length, rope_parameters=rope, pad_token_id=0)


QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")


def phi_family(config: Callable[[Ids, int], Phi3Config]) -> TinyFamily:
    return TinyFamily(
        config,
        (
            *("<unk>", "<s>", "</s>", "<|endoftext|>"),
            *("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        ),
        stop=("<|end|>", "<|endoftext|>"),
        chat_template=PHI_3,
        bpe=byte_fallback_bpe,
    )


TEXT: dict[str, TinyFamily] = {
    "llama": TinyFamily(
        llama_config,
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        stop=("<|eot_id|>", "<|end_of_text|>"),
        chat_template=LLAMA_3,
        begin="<|begin_of_text|>",
    ),
    "qwen2": TinyFamily(
        qwen2_config, QWEN_SPECIAL, stop=("<|im_end|>", "<|endoftext|>"), chat_template=CHATML
    ),
    "qwen3": TinyFamily(
        qwen3_config, QWEN_SPECIAL, stop=("<|im_end|>", "<|endoftext|>"), chat_template=CHATML
    ),
    "mistral": TinyFamily(
        mistral_config,
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        stop=("</s>",),
        chat_template=MISTRAL,
        begin="<s>",
    ),
    "gemma": TinyFamily(
        gemma_config,
        GEMMA_SPECIAL,
        stop=("<end_of_turn>", "<eos>"),
        chat_template=GEMMA,
        begin="<bos>",
    ),
    "gemma2": TinyFamily(
        gemma2_config,
        GEMMA_SPECIAL,
        stop=("<end_of_turn>", "<eos>"),
        chat_template=GEMMA,
        begin="<bos>",
    ),
    "gemma3_text": TinyFamily(
        gemma3_text_config,
        GEMMA_SPECIAL,
        stop=("<end_of_turn>", "<eos>"),
        chat_template=GEMMA,
        begin="<bos>",
    ),
    "phi3": phi_family(phi3_config),
    "phi3_long": phi_family(phi3_long_config),
}
