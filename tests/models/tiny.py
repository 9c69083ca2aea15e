"""What a tiny model's folder holds, as data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from tests.models.tokenizers import byte_level_bpe

Json = dict[str, Any]
Ids = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """What a family's folder holds.

    Attributes:
        config: makes the config from the special tokens' ids and the size of the vocabulary.
        special: special tokens in the order of their ids.
        stop: which of them end an answer; the first is the tokenizer's end token.
        chat_template: a template that behaves as the family's own; None where it has none.
        bpe: the tokenizer without special tokens.
        begin: a token that the tokenizer puts before every text, where the family does so.
        named: special tokens that the tokenizer carries as attributes, e.g. `image_token`.
        placeholders: tokens that stand for features; a random model must not write them.
        files: the processor's JSON files, by name.
        flexible: whether a picture's size decides how many tokens stand for it.
        seed: of the weights; one with which answers do not end at once.
    """

    config: Callable[[Ids, int], Any]
    special: Sequence[str]
    stop: Sequence[str]
    chat_template: str | None
    bpe: Callable[[], Tokenizer] = byte_level_bpe
    begin: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    placeholders: Sequence[str] = ()
    files: Mapping[str, Json] = field(default_factory=dict)
    flexible: bool = True
    seed: int = 0


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
