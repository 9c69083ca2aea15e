"""The decoding loop over a fake target: the target's own text, whatever is drafted."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from engine.decode import SEED_CHUNK, Limits, decode, seed
from engine.drafters.base import Drafter, PlainDrafter
from engine.drafters.recap import RecapDrafter
from engine.logits import GreedyRules, Predictions
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.states import states_of
from engine.stats import DecodeStats
from engine.tree import DraftTree
from tests.engine.fakes import (
    FakeTarget,
    Scripted,
    Text,
    answered,
    greedy,
    markov,
    no_rules,
    oracle,
    saboteur,
)

VOCAB = 24
PROMPT = (3, 1, 4, 1, 5)
MODEL = markov(VOCAB, order=2)
TEXT = greedy(MODEL, PROMPT, 60)
FIRST = TEXT[0]
NEVER: frozenset[int] = frozenset()
CPU = torch.device("cpu")


def run(
    drafter: Drafter, max_tokens: int = 30, stop_ids: frozenset[int] = NEVER
) -> tuple[list[list[int]], FakeTarget, DecodeStats]:
    """What passes committed behind the first token, the target's cache, the measures."""
    target, stats = FakeTarget(MODEL, PROMPT), DecodeStats()
    limits = Limits(max_tokens, stop_ids)
    return answered(target, drafter, PROMPT, FIRST, limits, stats=stats), target, stats


def flat(passes: Sequence[Sequence[int]]) -> list[int]:
    return [token for tokens in passes for token in tokens]


def right(max_depth_of_drafts: int = 99) -> Scripted:
    grow = oracle(TEXT, len(PROMPT))
    return Scripted(lambda tree, text, depth: grow(tree, text, min(depth, max_depth_of_drafts)))


def test_a_drafter_is_told_in_which_states_the_target_predicted_what() -> None:
    drafter = right(max_depth_of_drafts=3)
    drafter.states = True
    _, target, _ = run(drafter)
    assert len(drafter.learned) == len(target.logits)
    for logits, (_, predictions) in zip(target.logits, drafter.learned, strict=True):
        assert predictions.states is not None
        assert predictions.states.tolist() == states_of(logits).tolist()
    seed(target, drafter, PROMPT, NEVER)
    (recognised,) = drafter.recognised
    assert recognised.tolist() == target.prompt_states().tolist()


def test_a_drafter_that_wants_no_states_gets_none() -> None:
    drafter = right()
    _, target, _ = run(drafter)
    seed(target, drafter, PROMPT, NEVER)
    assert all(predictions.states is None for _, predictions in drafter.learned)
    assert drafter.recognised == []


def test_plain_decoding_commits_one_token_a_pass() -> None:
    passes, target, stats = run(PlainDrafter())
    assert passes == [[token] for token in TEXT[1:30]]
    assert target.committed == [*PROMPT, *TEXT[:29]], "all but the last, which is the next root"
    assert stats.mean_acceptance_length == 1.0
    assert stats.drafted == 0


def test_right_drafts_are_committed_with_the_bonus_token() -> None:
    passes, target, stats = run(right(max_depth_of_drafts=3), max_tokens=30)
    assert passes == [TEXT[at : at + 4] for at in range(1, 29, 4)] + [TEXT[29:30]]
    assert target.committed == [*PROMPT, *TEXT[:29]]
    assert stats.new_tokens == 30
    assert stats.accepted == 21


@given(st.integers(0, 10**6))
def test_whatever_is_drafted_the_text_is_the_target_s_own(chance: int) -> None:
    drafter = Scripted(saboteur(TEXT, len(PROMPT), VOCAB, chance))
    passes, target, stats = run(drafter, max_tokens=50)
    assert [FIRST, *flat(passes)] == TEXT[:50]
    assert target.committed == [*PROMPT, *TEXT[:49]]
    assert drafter.text == [*PROMPT, *TEXT[:50]], "the drafter is told all, once"
    assert stats.new_tokens == 50
    assert sum(n * passes for n, passes in stats.acceptance_histogram.items()) == 49


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("nodes", [0, 1, 4, 64])
def test_recap_gives_the_target_s_text_and_learns_to_draft_it(order: int, nodes: int) -> None:
    model = markov(VOCAB, order, seed=order)
    text = greedy(model, PROMPT, 200)
    drafter = RecapDrafter(DrafterOptions(nodes=nodes, adaptive=False), TokenMemory(), frozenset())
    stats = DecodeStats()
    passes = answered(
        FakeTarget(model, PROMPT), drafter, PROMPT, text[0], Limits(200, NEVER), stats=stats
    )
    assert [text[0], *flat(passes)] == text
    most = {0: 1.0, 1: 2.0}.get(nodes, 200.0)
    assert stats.mean_acceptance_length <= most
    if nodes:
        assert stats.mean_acceptance_length > 1.1, "a text of so few tokens repeats itself"


@pytest.mark.parametrize("at", range(1, 12))
def test_a_stop_token_inside_an_accepted_block_ends_the_answer(at: int) -> None:
    stop = frozenset({TEXT[at]})
    end = next(i for i, token in enumerate(TEXT) if token in stop)
    if end == 0:
        return
    passes, target, stats = run(right(), stop_ids=stop)
    assert [FIRST, *flat(passes)] == TEXT[: end + 1]
    assert target.committed == [*PROMPT, *TEXT[:end]]
    assert stats.accepted == end - 1, "drafts behind the stop token do not count"
    assert stats.new_tokens == end + 1


def test_a_first_token_that_stops_needs_no_pass() -> None:
    passes, target, _ = run(right(), stop_ids=frozenset({FIRST}))
    assert passes == []
    assert target.trees == []


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 8])
def test_an_answer_has_exactly_as_many_tokens_as_asked(max_tokens: int) -> None:
    drafter = right()
    passes, _, stats = run(drafter, max_tokens)
    assert [FIRST, *flat(passes)] == TEXT[:max_tokens]
    assert stats.new_tokens == max_tokens
    assert all(depth >= 0 for depth in drafter.depths_asked)


def test_cancelling_ends_the_answer_after_the_running_pass() -> None:
    cancel = threading.Event()

    def grow(tree: DraftTree, text: Text, max_depth: int) -> None:
        if len(text) == len(PROMPT) + 4:
            cancel.set()

    target = FakeTarget(MODEL, PROMPT)
    limits = Limits(30, NEVER)
    passes = answered(target, Scripted(grow), PROMPT, FIRST, limits, cancel=cancel)
    assert flat(passes) == TEXT[1:5]
    assert target.committed == [*PROMPT, *TEXT[:4]]


def test_closing_early_leaves_target_drafter_and_measures_in_step() -> None:
    target, drafter, stats = FakeTarget(MODEL, PROMPT), right(3), DecodeStats(new_tokens=1)
    drafter.start([*PROMPT, FIRST])
    history = [*PROMPT, FIRST]
    passes = decode(target, drafter, no_rules(), history, Limits(30, NEVER), stats)
    assert next(passes) == TEXT[1:5]
    passes.close()  # type: ignore[attr-defined]
    assert history == drafter.text == [*PROMPT, *TEXT[:5]]
    assert target.committed == history[:-1]
    assert (stats.new_tokens, stats.passes) == (5, 1)


def test_drafters_learn_from_every_node_and_hear_which_were_accepted() -> None:
    def grow(tree: DraftTree, text: Text, max_depth: int) -> None:
        tree.add((TEXT[1] + 1) % VOCAB, 0, 0, 0.5)
        tree.add(TEXT[1], 0, 0, 0.5)

    drafter = Scripted(grow)
    run(drafter, max_tokens=3)
    ((path, predictions),) = drafter.learned
    assert path == [0, 2]
    assert [predictions.choices[node] for node in path] == TEXT[1:3]
    wrong = (*PROMPT, FIRST, (TEXT[1] + 1) % VOCAB)
    np.testing.assert_array_equal(predictions.top_ids[1], MODEL(wrong).topk(2).indices)


def test_time_of_the_consumer_is_not_decoding_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("engine.decode.perf_counter", lambda: float(next(now)))
    target, drafter, stats = FakeTarget(MODEL, PROMPT), PlainDrafter(), DecodeStats(new_tokens=1)
    drafter.observe([FIRST])
    for _ in decode(target, drafter, no_rules(), [*PROMPT, FIRST], Limits(4, NEVER), stats):
        next(now)  # the consumer looks at the clock too
    # A pass looks four times: before and after drafting, after verifying, after learning.
    assert (stats.passes, stats.decode_s, stats.draft_s) == (3, 9.0, 6.0)


class Seeded(PlainDrafter):
    seeds = 40
    k = 3

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, list[int]] = {}

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        rows = predictions.top_ids.tolist()
        self.seen.update(zip(positions, rows, strict=True))


def test_seeding_shows_what_the_target_predicts_at_text_positions() -> None:
    prompt = [*PROMPT, 20, 20, 21, *PROMPT * (SEED_CHUNK // 2)]
    target, drafter = FakeTarget(MODEL, prompt), Seeded()
    drafter.seeds = len(prompt)
    seed(target, drafter, prompt, frozenset({20, 21}))
    text_positions = [i for i in range(len(prompt) - 1) if prompt[i] not in (20, 21)]
    assert list(drafter.seen) == target.asked == text_positions, "all but the last, each once"
    for position in (0, 4, 8, len(prompt) - 2):
        expected = MODEL(tuple(prompt[: position + 1])).topk(3).indices.tolist()
        assert drafter.seen[position] == expected


def test_of_a_long_prompt_the_last_positions_are_shown() -> None:
    prompt = PROMPT * SEED_CHUNK
    target, drafter = FakeTarget(MODEL, prompt), Seeded()
    seed(target, drafter, prompt, frozenset())
    assert target.asked == list(range(len(prompt) - 1 - drafter.seeds, len(prompt) - 1))


def test_the_rules_see_the_text_that_was_committed() -> None:
    rules = GreedyRules(GenerationConfig(no_repeat_ngram_size=1), ())
    rules.start(len(PROMPT), 15, CPU)
    drafter = Scripted(saboteur(TEXT, len(PROMPT), VOCAB))
    limits = Limits(15, NEVER)
    passes = answered(FakeTarget(MODEL, PROMPT), drafter, PROMPT, FIRST, limits, rules)
    text = [*PROMPT, FIRST, *flat(passes)]
    assert len(set(text[len(PROMPT) :])) == 15, "no token twice, none of the prompt's"
    for end in range(len(PROMPT) + 1, len(text)):
        fresh = MODEL(tuple(text[:end])).index_fill(0, torch.tensor(text[:end]), -torch.inf)
        assert text[end] == int(fresh.argmax())
