"""Writes the folder of a tiny random model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from tests.models.text import TEXT
from tests.models.tiny import TinyFamily
from tests.models.vision import VISION

FAMILIES: dict[str, TinyFamily] = {**VISION, **TEXT}
FLAGSHIPS = ("llama", "llava_next", "qwen2", "qwen2_5_vl")
"""Families that stand for all in what costs time and does not depend on the family."""


def build_tiny_model(family: str, folder: Path, *, repetition_penalty: float | None = None) -> Path:
    """Write a complete model folder of `family` and return it.

    Args:
        family: a key of `FAMILIES`.
        folder: made where it is missing.
        repetition_penalty: what the generation config asks for; None asks for none.
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
    model = random_model(config, [ids[token] for token in tiny.placeholders], tiny.seed)
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

    The same `seed` makes the same model. The output rows of `never_written` ids are zero, so their
    logits (0) are never the largest.
    """
    vision = hasattr(config, "vision_config")
    auto = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for what is random but no matrix, as LLaVA's `image_newline` is
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
