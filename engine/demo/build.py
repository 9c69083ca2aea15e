"""The demo model before training: tokenizer, chat template, processor and configuration.

`new_model` and `new_tokenizer` make them from code alone, so that the folder `model/` can be
remade from nothing but this package.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from engine.demo.questions import conversation, questions, small_talk
from engine.demo.scenes import imagine_scene

SIDE = 84  # pixels: three by three merged patches, one for each place of a scene
IMAGE_TOKENS = 9
SYSTEM = "You are a helpful assistant."
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_VOCABULARY = 640
_CHAT_TEMPLATE = """\
{%- set pictures = namespace(count=0) -%}
{%- if messages and messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] in ('image', 'image_url') or 'image' in part -%}
{%- set pictures.count = pictures.count + 1 -%}
{%- if add_vision_id -%}{{- 'Picture ' ~ pictures.count ~ ': ' -}}{%- endif -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def _corpus(scenes: int = 1500) -> Iterator[str]:
    """Text as the model will meet it; answers count double, for they cost a step a token."""
    for seed in range(scenes):
        scene = imagine_scene(seed)
        turns = [*conversation(scene, seed), *questions(scene, seed, 6), *small_talk(scene, seed)]
        for turn in turns:
            yield from (turn.question, turn.answer, turn.answer)
        yield f"system\n{SYSTEM}"
        yield from ("user\n", "assistant\n")


def new_tokenizer() -> Qwen2Tokenizer:
    """A byte-level BPE in Qwen's manner: any text can be encoded, common words are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return Qwen2Tokenizer(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        chat_template=_CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def new_image_processor() -> Qwen2VLImageProcessorPil:
    """Qwen's processor with bounds that bring every square picture to SIDE x SIDE pixels."""
    return Qwen2VLImageProcessorPil(min_pixels=78 * 78, max_pixels=90 * 90)


def new_config(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLConfig:
    """A Qwen2.5-VL of about five million parameters."""
    ids = tokenizer.get_vocab()
    width = 224
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 576,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                # M-RoPE gives time the fastest frequencies, then height, then width. Of a picture's
                # few columns one step must turn some pairs well, and to find what a question
                # names at any distance most pairs must hardly turn at all: a lower base can only
                # do the one, and the usual sections, with a high base, only the other.
                "rope_theta": 100_000.0,
                "mrope_section": [1, 2, 25],
            },
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 3,
            "hidden_size": 144,
            "intermediate_size": 384,
            "num_heads": 4,
            "out_hidden_size": width,
            "fullatt_block_indexes": [0, 1, 2],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def new_model(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    """The model with random weights, from torch's generator."""
    model = Qwen2_5_VLForConditionalGeneration(new_config(tokenizer))
    ids = tokenizer.get_vocab()
    model.generation_config = GenerationConfig.from_dict(
        {
            "do_sample": False,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        }
    )
    return model


def save(
    folder: Path, model: Qwen2_5_VLForConditionalGeneration, tokenizer: Qwen2Tokenizer
) -> None:
    """Write everything that `from_pretrained` reads, weights in float16."""
    nn.Module.half(copy.deepcopy(model)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    new_image_processor().save_pretrained(folder)
