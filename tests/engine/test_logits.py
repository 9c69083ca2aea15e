"""Choices and top k against torch, and the generation config's rules against transformers' own."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as lp

from engine import kernels
from engine.errors import ModelError
from engine.logits import SMALL, GreedyRules, in_one_transfer, predict
from engine.tree import DraftTree

SMALL_ONES = (1, 5, 63, 64, 65, 127, 128, 200, 449, 1000, SMALL)
LARGE_ONES = (SMALL + 1, SMALL + 64, 5000)
CPU = torch.device("cpu")


@st.composite
def logits(draw: st.DrawFn, vocabularies: tuple[int, ...] = SMALL_ONES + LARGE_ONES) -> Tensor:
    """[n, vocab] float32 with few different values, so that ties are everywhere."""
    n, vocab = draw(st.integers(1, 4)), draw(st.sampled_from(vocabularies))
    levels = draw(st.sampled_from([1, 2, 5, 1000]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    drawn = torch.randint(levels, (n, vocab), generator=random) / 50
    if draw(st.booleans()):  # as processors suppress tokens
        drawn[:, draw(st.integers(0, vocab - 1)) :] = -torch.inf
        drawn[:, 0] = 1.0
    return drawn


@pytest.fixture(params=["PyTorch", "C++"], autouse=True)
def searched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the top k are found."""
    if request.param == "PyTorch":
        monkeypatch.setattr(kernels, "loaded", lambda: False)
    elif not kernels.loaded():
        pytest.skip("no operators here")


@given(logits(), st.sampled_from([0, 1, 2, 8, 64]))
def test_the_choice_is_the_argmax_and_on_a_tie_the_lowest_id(rows: Tensor, k: int) -> None:
    expected = [row.index(max(row)) for row in rows.tolist()]
    assert predict(rows, k).choices == expected


@given(logits(), st.sampled_from([1, 2, 8, 64]))
def test_the_top_k_are_the_largest(rows: Tensor, k: int) -> None:
    k = min(k, rows.shape[1])
    ids = torch.from_numpy(predict(rows, k).top_ids)
    assert torch.equal(rows.gather(1, ids), rows.topk(k).values)


@given(logits(SMALL_ONES), st.sampled_from([2, 8, 64]))
def test_the_top_k_are_torch_s(rows: Tensor, k: int) -> None:
    vocab = rows.shape[1]
    predictions = predict(rows, k)
    expected = rows.softmax(-1).topk(min(k, vocab)).values.numpy()
    np.testing.assert_allclose(predictions.top_probs, expected, rtol=1e-4, atol=1e-30)
    assert (predictions.top_ids >= 0).all()
    assert (predictions.top_ids < vocab).all()
    for row, ids, probs in zip(rows, predictions.top_ids, predictions.top_probs, strict=True):
        possible = ids[probs > 0]
        assert len(set(possible.tolist())) == len(possible), "an id stands in a row once"
        np.testing.assert_allclose(row.softmax(-1)[ids].numpy(), probs, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("vocab", [7, 100, SMALL + 1])
def test_where_few_tokens_are_possible_ids_are_still_of_the_vocabulary(vocab: int) -> None:
    rows = torch.full((2, vocab), -torch.inf)
    rows[:, vocab - 2] = 1.0
    predictions = predict(rows, 8)
    assert predictions.top_ids.max() < vocab
    assert predictions.top_probs[:, 0].tolist() == [1.0, 1.0]
    assert not predictions.top_probs[:, 1:].any()


def test_without_k_there_are_choices_only() -> None:
    predictions = predict(torch.tensor([[0.0, 2.0, 2.0]]), 0)
    assert predictions.choices == [1]
    assert predictions.top_ids.shape == predictions.top_probs.shape == (1, 0)


def test_ids_of_a_large_vocabulary_come_through_exactly() -> None:
    rows = torch.zeros(1, 262_147)
    rows[0, [262_146, 16_777 * 15, 131_071]] = torch.tensor([9.0, 8.0, 7.0])
    assert predict(rows, 3).top_ids.tolist() == [[262_146, 251_655, 131_071]]


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("n", [1, 5])
def test_what_a_device_sends_is_what_a_cpu_finds(n: int, wanted: bool) -> None:
    rows, hidden = torch.randn(n, 300_000), torch.randn(n, 70) if wanted else None
    expected = predict(rows, 4, hidden)
    ids, probs = map(torch.from_numpy, (expected.top_ids, expected.top_probs))
    sent = in_one_transfer(rows, ids, probs, hidden)
    assert sent.choices == expected.choices
    for name in ("top_ids", "top_probs", "states"):
        ours, theirs = getattr(sent, name), getattr(expected, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.dtype == theirs.dtype
            assert ours.flags.c_contiguous
            assert ours.flags.aligned
            assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_logits_that_overflowed_teach_nothing(broken: float) -> None:
    rows = torch.randn(1, 70)
    rows[0, 3] = broken
    predictions = predict(rows, 8)
    assert predictions.choices == [int(rows.argmax())]
    assert predictions.top_probs.tolist() == [[0.0] * 8]


VOCAB = 40
EOS = [7, 9]
HISTORY = [3, 4, 5, 3, 4, 8, 3, 4]
PROMPT_TOKENS = 6
MAX_TOKENS = 5


def bushy() -> DraftTree:
    tree = DraftTree([HISTORY[-1]])
    five, seven = tree.add(5, 0, 0, 0.5), tree.add(7, 0, 0, 0.2)
    three, _ = tree.add(3, five, 0, 0.3), tree.add(8, five, 0, 0.1)
    tree.add(4, three, 0, 0.2)
    tree.add(5, seven, 0, 0.1)
    return tree


def text_at(tree: DraftTree, node: int) -> list[int]:
    """The history down to a node."""
    tail: list[int] = []
    while node > 0:
        tail.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return HISTORY + tail


RULES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"repetition_penalty": 1.05}, [lp.RepetitionPenaltyLogitsProcessor(1.05)]),
    ({"repetition_penalty": 0.8}, [lp.RepetitionPenaltyLogitsProcessor(0.8)]),
    ({"no_repeat_ngram_size": 2}, [lp.NoRepeatNGramLogitsProcessor(2)]),
    ({"bad_words_ids": [[5, 3], [8]]}, [lp.NoBadWordsLogitsProcessor([[5, 3], [8]], EOS)]),
    ({"sequence_bias": [[[4, 5], 3.0]]}, [lp.SequenceBiasLogitsProcessor([[[4, 5], 3.0]])]),
    ({"min_length": 10}, [lp.MinLengthLogitsProcessor(10, EOS)]),
    ({"min_new_tokens": 4}, [lp.MinNewTokensLengthLogitsProcessor(PROMPT_TOKENS, 4, EOS)]),
    (
        {"forced_eos_token_id": 9},
        [lp.ForcedEOSTokenLogitsProcessor(PROMPT_TOKENS + MAX_TOKENS, 9)],
    ),
    (
        {"exponential_decay_length_penalty": (2, 1.5)},
        [lp.ExponentialDecayLengthPenalty((2, 1.5), EOS, PROMPT_TOKENS)],
    ),
    ({"suppress_tokens": [1, 2, 3]}, [lp.SuppressTokensLogitsProcessor([1, 2, 3])]),
    ({"remove_invalid_values": True}, [lp.InfNanRemoveLogitsProcessor()]),
    (
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [0]},
        [
            lp.RepetitionPenaltyLogitsProcessor(1.3),
            lp.NoRepeatNGramLogitsProcessor(3),
            lp.SuppressTokensLogitsProcessor([0]),
        ],
    ),
]


@pytest.mark.parametrize(
    ("asked", "processors"), RULES, ids=["-".join(asked) for asked, _ in RULES]
)
def test_every_node_s_logits_are_processed_as_if_its_path_were_the_text(
    asked: dict[str, Any], processors: list[Any]
) -> None:
    tree = bushy()
    rows = torch.randn(len(tree), VOCAB, generator=torch.Generator().manual_seed(0))
    rules = GreedyRules(GenerationConfig(**asked), EOS)
    rules.start(PROMPT_TOKENS, MAX_TOKENS, CPU)
    processed = rules.apply(rows.clone(), tree, HISTORY)
    theirs: Any = LogitsProcessorList(processors)
    for node in range(len(tree)):
        text = torch.tensor([text_at(tree, node)])
        assert torch.equal(processed[node], theirs(text, rows[node : node + 1].clone())[0])


def test_a_penalty_follows_the_text_from_pass_to_pass_and_from_request_to_request() -> None:
    rules = GreedyRules(GenerationConfig(repetition_penalty=1.3), EOS)
    theirs = lp.RepetitionPenaltyLogitsProcessor(1.3)
    rows = torch.randn(len(bushy()), VOCAB, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        rules.start(PROMPT_TOKENS, MAX_TOKENS, CPU)
        for length in (3, 6, len(HISTORY)):
            history = HISTORY[:length]
            tree = replace(bushy(), tokens=[history[-1], *bushy().tokens[1:]])
            processed = rules.apply(rows.clone(), tree, history)
            for node in range(len(tree)):
                text = torch.tensor([history + text_at(tree, node)[len(HISTORY) :]])
                expected = theirs(text, cast(torch.FloatTensor, rows[node : node + 1].clone()))
                assert torch.equal(processed[node], expected[0])


def test_rules_of_one_request_do_not_count_into_the_next() -> None:
    rules = GreedyRules(GenerationConfig(min_new_tokens=3), EOS)
    rows = torch.zeros(1, VOCAB)
    root = DraftTree([4])
    rules.start(len(HISTORY), MAX_TOKENS, CPU)
    assert rules.apply(rows.clone(), root, HISTORY)[0, EOS].tolist() == [-torch.inf] * 2
    rules.start(len(HISTORY) - 3, MAX_TOKENS, CPU)
    assert rules.apply(rows.clone(), root, HISTORY)[0, EOS].tolist() == [0, 0]


def test_a_config_that_asks_for_nothing_changes_nothing() -> None:
    rules = GreedyRules(GenerationConfig(repetition_penalty=1.0, do_sample=True, top_k=5), EOS)
    rules.start(PROMPT_TOKENS, MAX_TOKENS, CPU)
    rows = torch.randn(7, VOCAB)
    assert torch.equal(rules.apply(rows.clone(), bushy(), HISTORY), rows)


@pytest.mark.parametrize(
    "asked",
    [
        {"guidance_scale": 1.5},
        {"begin_suppress_tokens": [3]},
        {"forced_bos_token_id": 0},
        {"encoder_repetition_penalty": 1.2},
        {"encoder_no_repeat_ngram_size": 2},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_cannot_be_honoured_is_refused_by_name(asked: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(asked))):
        GreedyRules(GenerationConfig(**asked), EOS)
