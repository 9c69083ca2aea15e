"""Tiny random models of every family that is claimed, and tiny pictures: made by code, at once.

A model folder is complete, as `save_pretrained` and the Hub lay it out: config, float32 weights,
tokenizer, chat template, the family's real processor and image processor, generation config. Only
the sizes are small. A family is one entry of `FAMILIES` and a function that makes its config.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaNextConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2Config,
)

Json = dict[str, Any]
Ids = Mapping[str, int]

CORPUS = (
    "The picture shows a small red circle and two large blue squares on a white background.",
    "A green triangle is to the left of the yellow star, above the purple diamond.",
    "What do you see in this image? Describe the shapes, their colours and where they are.",
    "There are three shapes in this picture: a circle, a square and a star.",
    "How many circles are there? Answer with one word, please. There is one. There are two.",
    "Is the red square larger than the blue circle? Yes, it is. No, it is not.",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))  # 12\n",
)

CHATML = (
    "{%- if messages[0].role != 'system' -%}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
LLAMA_3 = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' -}}"
    "{{- message.content | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}"
)
# As LLaVA-1.6 on Mistral: no begin token (the tokenizer adds it), pictures first in their turn.
MISTRAL_LLAVA = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}"
    "{{- '[INST] ' -}}"
    "{%- for part in message.content if part.type == 'image' -%}{{- '<image>\n' -}}{%- endfor -%}"
    "{%- for part in message.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}"
    "{{- ' [/INST]' -}}"
    "{%- else -%}"
    "{%- if message.role == 'system' -%}{{- '<<SYS>>\n' -}}{%- endif -%}"
    "{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}"
    "{{- '\n<</SYS>>\n\n' if message.role == 'system' else '</s>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
)


@cache
def byte_level_bpe() -> Tokenizer:
    """Byte-level BPE of about 400 tokens: Qwen's normaliser and pre-tokeniser, few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@cache
def byte_fallback_bpe() -> Tokenizer:
    """BPE over words that start with a meta space, else bytes: as Llama-2 and Mistral."""
    meta_space = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = meta_space
    trainer = trainers.BpeTrainer(vocab_size=160, show_progress=False)
    learner.train_from_iterator(CORPUS, trainer)
    learned = json.loads(learner.to_str())["model"]
    leading = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: index for index, token in enumerate([*leading, *learned["vocab"]])}
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = meta_space
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def text_sizes(vocab_size: int) -> Json:
    """Sizes of a language model: two layers, fewer key-value heads than heads."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }


def qwen2_5_vl_config(ids: Ids, vocab_size: int) -> Qwen2_5_VLConfig:
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    return Qwen2_5_VLConfig(
        text_config=text_sizes(vocab_size) | {"rope_parameters": rope},
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


TILES = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]  # LLaVA-NeXT's, a sixth as large


def llava_next_config(ids: Ids, vocab_size: int) -> LlavaNextConfig:
    return LlavaNextConfig(
        text_config=MistralConfig(**text_sizes(vocab_size), sliding_window=None),
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=56,
            patch_size=14,
            projection_dim=32,
        ),
        image_token_index=ids["<image>"],
        image_grid_pinpoints=TILES,
    )


def llama_config(ids: Ids, vocab_size: int) -> LlamaConfig:
    return LlamaConfig(**text_sizes(vocab_size))


def qwen2_config(ids: Ids, vocab_size: int) -> Qwen2Config:
    return Qwen2Config(**text_sizes(vocab_size))


CLIP_NORMALISATION = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """What a family's folder holds.

    Attributes:
        config: makes the config from the special tokens' ids and the size of the vocabulary.
        special: special tokens in the order of their ids.
        stop: which of them end an answer; the first is the tokenizer's end token.
        chat_template: a template that behaves as the family's own.
        bpe: the tokenizer without special tokens.
        begin: a token that the tokenizer puts before every text, where the family does so.
        named: special tokens that the tokenizer carries as attributes, e.g. `image_token`.
        placeholders: tokens that stand for features; a random model must not write them.
        files: the processor's JSON files, by name.
    """

    config: Callable[[Ids, int], Any]
    special: Sequence[str]
    stop: Sequence[str]
    chat_template: str
    bpe: Callable[[], Tokenizer] = byte_level_bpe
    begin: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    placeholders: Sequence[str] = ()
    files: Mapping[str, Json] = field(default_factory=dict)


QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

FAMILIES: dict[str, TinyFamily] = {
    "qwen2_5_vl": TinyFamily(
        qwen2_5_vl_config,
        (*QWEN_SPECIAL, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        stop=("<|im_end|>", "<|endoftext|>"),
        chat_template=CHATML,
        placeholders=("<|image_pad|>", "<|video_pad|>"),
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2_5_VLProcessor",
                "min_pixels": 56 * 56,
                "max_pixels": 28 * 28 * 100,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                **CLIP_NORMALISATION,
            }
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
                "size": {"shortest_edge": 56},
                "crop_size": {"height": 56, "width": 56},
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
}


def build_tiny_model(
    family: str, folder: Path, *, repetition_penalty: float | None = None, seed: int = 0
) -> Path:
    """Write a complete model folder of `family` and return it.

    Args:
        family: a key of `FAMILIES`.
        folder: made where it is missing.
        repetition_penalty: what the generation config asks for; None asks for none.
        seed: of the weights.
    """
    tiny = FAMILIES[family]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(tiny, folder)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tiny.special}
    # Real models pad their embeddings beyond the tokenizer's last id.
    vocab_size = 32 * (len(tokenizer) // 32 + 1)
    config = tiny.config(ids, vocab_size)
    text_config = config.get_text_config()
    text_config.bos_token_id = ids[tiny.begin] if tiny.begin else None
    text_config.eos_token_id = ids[tiny.stop[0]]
    model = random_model(config, [ids[token] for token in tiny.placeholders], seed)
    model.generation_config = GenerationConfig(
        eos_token_id=[ids[token] for token in tiny.stop],
        pad_token_id=ids[tiny.stop[-1]],
        repetition_penalty=repetition_penalty,
    )
    model.save_pretrained(folder)
    for name, content in tiny.files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def write_tokenizer(tiny: TinyFamily, folder: Path) -> Any:
    """Save the family's tokenizer with its special tokens and chat template."""
    bpe = Tokenizer.from_str(tiny.bpe().to_str())
    bpe.add_special_tokens(list(tiny.special))
    if tiny.begin:
        bpe.post_processor = TemplateProcessing(
            single=f"{tiny.begin} $A",
            special_tokens=[(tiny.begin, bpe.token_to_id(tiny.begin))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tiny.begin,
        eos_token=tiny.stop[0],
        pad_token=tiny.stop[-1],
        extra_special_tokens=dict(tiny.named),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = tiny.chat_template
    tokenizer.save_pretrained(folder)
    return tokenizer


def random_model(config: Any, never_written: Sequence[int], seed: int) -> Any:
    """A float32 model whose greedy answers vary: weights keep the scale of what passes through.

    The output rows of `never_written` ids are zero, so their logits (0) are never the largest.
    """
    vision = hasattr(config, "vision_config")
    auto = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.normal_(0.0, 1.4 * fan_in**-0.5, generator=generator)
        model.get_input_embeddings().weight.normal_(0.0, 1.0, generator=generator)
        head = model.get_output_embeddings().weight
        head.mul_(2.0)
        head[list(never_written)] = 0.0
    return model.eval()


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """An RGB picture of coarse random colours: no two seeds or sizes look the same to a model."""
    generator = torch.Generator().manual_seed(1000 * seed + width)
    pixels = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8, generator=generator)
    coarse = Image.frombytes("RGB", (7, 5), bytes(pixels.flatten().tolist()))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


ODD_SIZES = ((28, 28), (37, 91), (161, 40), (113, 112), (57, 57))
