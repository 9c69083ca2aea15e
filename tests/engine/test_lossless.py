"""Lossless: whatever the memories hold, the tokens are those of transformers' `generate`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.errors import ContextError
from engine.families import FAMILIES
from engine.loading import LoadedModel, load_model
from engine.memory.file import update_memory
from engine.memory.paths import tokenizer_fingerprint
from engine.memory.table import (
    PAIR,
    PHRASE_K,
    PHRASES_MOST,
    TOKEN_BITS,
    PhraseTable,
    Tables,
    TransitionTable,
)
from engine.options import DrafterOptions
from engine.prompts import Message
from tests.models import FLAGSHIPS, picture
from tests.zoo import (
    ANSWER,
    Conversation,
    Zoo,
    answers,
    conversations,
    finished,
    generated,
    session,
)

EVERY_FAMILY = pytest.mark.parametrize("family", sorted(FAMILIES))
VISION = sorted(name for name, family in FAMILIES.items() if family.vision)
CASES = pytest.mark.parametrize(
    ("family", "dtype", "penalty"),
    [
        pytest.param(family, dtype, penalty, id=f"{family}-{dtype}-{penalty}".replace("torch.", ""))
        for family in sorted(FAMILIES)
        for dtype in (torch.float32, torch.float64)
        for penalty in (None, 1.05)
        if penalty is None or family in FLAGSHIPS
    ],
)
BUSHY = DrafterOptions(nodes=48, adaptive=False, min_probability=0.0, suffix_min_match=1)
"""Drafts whatever a memory holds, however unlikely."""


def garbage(loaded: LoadedModel, seed: int = 0) -> TransitionTable:
    """Random transitions after every token; placeholders and control tokens are among them."""
    vocab = loaded.model.config.get_text_config().vocab_size
    chance = np.random.default_rng(seed)
    placeholders = sorted(loaded.encoder.placeholder_ids) or [0]
    next_ids = chance.integers(0, vocab, (vocab, 8)).astype(np.int32)
    often = chance.random((vocab, 8)) < 0.2
    next_ids[often] = chance.choice(placeholders, int(often.sum()))
    probs = np.sort(chance.random((vocab, 8)).astype(np.float32))[:, ::-1].copy()
    keys = np.arange(vocab, dtype=np.int32)
    return TransitionTable(keys, next_ids, probs, np.ones(vocab, np.uint32))


def garbage_phrases(loaded: LoadedModel) -> PhraseTable:
    """Transitions as wrong after every two tokens, as far as a memory has room for them."""
    vocab = loaded.model.config.get_text_config().vocab_size
    first, last = np.divmod(np.arange(min(vocab**2, PHRASES_MOST), dtype=np.uint64), vocab)
    keys = np.uint64(PAIR) + (first << np.uint64(TOKEN_BITS)) + last
    after = garbage(loaded, seed=1).with_k(PHRASE_K)
    rows = last.astype(np.intp)
    stamps = np.ones(len(keys), np.uint32)
    runs = (1 + keys % 9).astype(np.uint8)
    return PhraseTable(keys, after.next_ids[rows], after.probs[rows], stamps, runs)


def memory_of_garbage(loaded: LoadedModel, folder: Path) -> Path:
    path = folder / "garbage.safetensors"
    fingerprint = tokenizer_fingerprint(loaded.encoder.tokenizer.get_vocab())
    tables = Tables(garbage(loaded), garbage_phrases(loaded))
    update_memory(path, fingerprint, "nobody/knows", tables, 1)
    return path


@CASES
def test_plain_decoding_answers_as_generate_does(
    zoo: Zoo, family: str, dtype: torch.dtype, penalty: float | None
) -> None:
    loaded = zoo.loaded(family, dtype, penalty)
    ours = answers(session(loaded, "plain"), loaded.family.vision)
    assert ours == zoo.answers(family, dtype, penalty)


@CASES
def test_recap_answers_as_generate_does_from_an_empty_memory(
    zoo: Zoo, family: str, dtype: torch.dtype, penalty: float | None
) -> None:
    loaded = zoo.loaded(family, dtype, penalty)
    expected = zoo.answers(family, dtype, penalty)
    for each, answer in zip(conversations(loaded.family.vision), expected, strict=True):
        assert finished(session(loaded), each).token_ids == answer


@CASES
def test_recap_answers_as_generate_does_from_a_memory_that_knows_the_answers(
    zoo: Zoo, family: str, dtype: torch.dtype, penalty: float | None, tmp_path: Path
) -> None:
    loaded = zoo.loaded(family, dtype, penalty)
    expected = zoo.answers(family, dtype, penalty)
    file = tmp_path / "warm.safetensors"
    with session(loaded, memory_file=file) as first:
        assert answers(first, loaded.family.vision) == expected
    always = DrafterOptions(adaptive=False)  # drafting, however slow passes are
    with session(loaded, memory_file=file, drafter=always) as second:
        last = finished(second, conversations(loaded.family.vision)[-1])
        assert last.token_ids == expected[-1]
        assert last.stats.mean_acceptance_length > 1.2, "the memory helped"
        assert answers(second, loaded.family.vision) == expected


@CASES
def test_recap_answers_as_generate_does_from_a_memory_full_of_garbage(
    zoo: Zoo, family: str, dtype: torch.dtype, penalty: float | None, tmp_path: Path
) -> None:
    loaded = zoo.loaded(family, dtype, penalty)
    file = memory_of_garbage(loaded, tmp_path)
    misled = session(loaded, memory_file=file, drafter=BUSHY)
    for each, answer in zip(
        conversations(loaded.family.vision), zoo.answers(family, dtype, penalty), strict=True
    ):
        last = finished(misled, each)
        assert last.token_ids == answer
        assert last.stats.drafted > 4 * last.stats.passes, "garbage was drafted"


@EVERY_FAMILY
def test_generate_answers_the_same_with_our_attention(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    messages = conversations(loaded.family.vision)[-1]
    answer = generated(loaded.model, loaded.encoder.encode(messages))
    assert answer == zoo.answers(family, torch.float32, None)[-1]


def test_the_penalty_matters(zoo: Zoo) -> None:
    for family in FLAGSHIPS:
        without = zoo.answers(family, torch.float64, None)
        assert zoo.answers(family, torch.float64, 1.05) != without


@pytest.mark.parametrize("family", VISION)
def test_a_picture_matters(zoo: Zoo, family: str) -> None:
    model = session(zoo.loaded(family, torch.float32, None))
    looks = [(Message("user", "What?", (picture(57, 57, seed),)),) for seed in range(3)]
    assert len({tuple(finished(model, look).token_ids) for look in looks}) == 3


def a_day_of_requests() -> list[Conversation]:
    """One picture, another size, none, two pictures, the first again."""
    one, other = picture(113, 112, 1), picture(37, 91, 2)
    return [
        (Message("user", "What do you see?", (one,)),),
        (Message("user", "What do you see?", (other,)),),
        (Message("user", "How many circles are there?"),),
        (Message("user", "Same?", (other, one)),),
        (Message("user", "What do you see?", (one,)),),
    ]


@pytest.mark.parametrize(
    ("family", "method"), [*((family, "recap") for family in VISION), ("qwen2_5_vl", "plain")]
)
def test_a_request_is_answered_as_in_a_fresh_process(zoo: Zoo, family: str, method: Any) -> None:
    requests = a_day_of_requests()
    fresh = [finished(session(zoo.load(family), method), each).token_ids for each in requests]
    loaded = zoo.load(family)
    one_process = session(loaded, method)
    assert [finished(one_process, each).token_ids for each in requests] == fresh
    # Another session, and transformers itself, may use the same model in between.
    generated(loaded.model, loaded.encoder.encode(requests[3]))
    finished(session(loaded), requests[1])
    assert finished(one_process, requests[0]).token_ids == fresh[0]


# Rotary frequencies that are others in long texts


def test_an_answer_ends_where_the_frequencies_of_short_texts_end(zoo: Zoo, tmp_path: Path) -> None:
    (message,) = question = conversations(vision=False)[0]
    tokens = zoo.loaded("phi3_long").encoder.encode(question).input_ids.shape[1]
    folder = Path(shutil.copytree(zoo.folder_of("phi3_long", None), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    for owner in (config, config["rope_parameters"]):
        owner["original_max_position_embeddings"] = tokens + ANSWER
    (folder / "config.json").write_text(json.dumps(config))

    loaded = load_model(str(folder), "cpu", "float32")
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    expected = generated(reference, loaded.encoder.encode(question))
    assert expected != zoo.answers("phi3_long", torch.float32, None)[0], "the frequencies matter"
    misled = session(loaded, memory_file=memory_of_garbage(loaded, tmp_path), drafter=BUSHY)
    assert finished(misled, question).token_ids == expected
    assert len(finished(misled, question, max_tokens=None).token_ids) == ANSWER, "what fits"
    with pytest.raises(ContextError, match=f"do not fit into the model's {tokens + ANSWER}"):
        finished(misled, question, ANSWER + 1)
    # A longer prompt has the other frequencies from its first token, also after a short one.
    long = (replace(message, text=message.text * 8),)
    assert finished(misled, long).token_ids == generated(reference, loaded.encoder.encode(long))
    assert finished(misled, question).token_ids == expected
