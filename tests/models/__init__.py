"""Tiny random models of every family that is claimed, and tiny pictures: made by code, at once.

A model folder is complete, as `save_pretrained` and the Hub lay it out: config, float32 weights,
tokenizer, chat template, the family's real processor and image processor, generation config. Only
the sizes are small. A family is one entry of `VISION` or `TEXT` and a function that makes its
config.
"""

from tests.models.build import FAMILIES, FLAGSHIPS, build_tiny_model, random_model
from tests.models.pictures import ODD_SIZES, picture
from tests.models.tiny import text_sizes
from tests.models.tokenizers import byte_fallback_bpe, byte_level_bpe

__all__ = [
    "FAMILIES",
    "FLAGSHIPS",
    "ODD_SIZES",
    "build_tiny_model",
    "byte_fallback_bpe",
    "byte_level_bpe",
    "picture",
    "random_model",
    "text_sizes",
]
