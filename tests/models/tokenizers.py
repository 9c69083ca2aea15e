"""Byte-pair encodings of about 400 tokens, trained at once: of Qwen's kind and of Llama-2's."""

import json
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "The picture shows a small red circle and two large blue squares on a white background.",
    "A green triangle is to the left of the yellow star, above the purple diamond.",
    "What do you see in this image? Describe the shapes, their colours and where they are.",
    "There are three shapes in this picture: a circle, a square and a star.",
    "How many circles are there? Answer with one word, please. There is one. There are two.",
    "Is the red square larger than the blue circle? Yes, it is. No, it is not.",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))  # 12\n",
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
