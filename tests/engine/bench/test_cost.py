"""The cost of passes: what is timed in which order, and what the times come to."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine.bench.cost import (
    WARMUP,
    CostOptions,
    CostPoint,
    PassTime,
    Subject,
    cost_points,
    open_subject,
    time_passes,
)
from engine.errors import ModelError, UsageError
from engine.prompts import EncodedPrompt
from engine.target import Target
from engine.tree import DraftTree
from tests.zoo import Zoo

VOCAB = 40


class RecordingTarget:
    """Remembers what it was given; runs out of memory behind `most` tokens."""

    def __init__(self, most: int = 10**6) -> None:
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=VOCAB))
        self.model = SimpleNamespace(config=config)
        self.prompts: list[list[int]] = []
        self.trees: list[DraftTree] = []
        self._most = most

    def prefill(self, prompt: EncodedPrompt, room: int) -> None:
        if prompt.input_ids.shape[1] > self._most:
            raise torch.OutOfMemoryError
        self.prompts.append(prompt.input_ids[0].tolist())

    def forget_prompt(self) -> None:
        pass

    def verify(self, tree: DraftTree) -> Tensor:
        self.trees.append(tree)
        return torch.zeros(len(tree), VOCAB)


def subject(target: RecordingTarget, avoid: frozenset[int] = frozenset()) -> Subject:
    return Subject("recorded", cast(Target, target), avoid, None)


def timed(*milliseconds: float, tokens: int, context: int = 512) -> list[PassTime]:
    return [PassTime(context, tokens, ms / 1e3) for ms in milliseconds]


def test_every_size_has_its_turn_in_every_round_and_the_first_rounds_do_not_count() -> None:
    target = RecordingTarget()
    options = CostOptions((4, 2, 9), (5, 3), repeats=4)
    times = list(time_passes(subject(target), options))
    assert [len(prompt) for prompt in target.prompts] == [3, 5]
    assert [time.context for time in times] == [3] * 16 + [5] * 16
    assert len(times) == options.passes
    assert len(target.trees) == 2 * 4 * (WARMUP + 4)
    asked = [len(tree) for tree in target.trees]
    rounds = {tuple(asked[i : i + 4]) for i in range(0, len(asked), 4)}
    assert {tuple(sorted(sizes)) for sizes in rounds} == {(1, 2, 4, 9)}
    assert len(rounds) > 1
    assert Counter(time.tokens for time in times) == dict.fromkeys((1, 2, 4, 9), 8)
    assert all(time.seconds > 0 for time in times)


def test_placeholders_of_pictures_are_not_among_the_random_tokens() -> None:
    target = RecordingTarget()
    avoid = frozenset(range(VOCAB)) - {7, 8}
    list(time_passes(subject(target, avoid), CostOptions((64,), (64,), repeats=2)))
    used = {token for tree in target.trees for token in tree.tokens} | set(target.prompts[0])
    assert used == {7, 8}


def test_a_device_without_room_ends_what_was_begun_with_a_reason() -> None:
    passes = time_passes(subject(RecordingTarget(most=4)), CostOptions((1,), (4, 8), repeats=2))
    assert [next(passes).context for _ in range(2)] == [4, 4]
    with pytest.raises(ModelError, match="out of memory behind 8 tokens"):
        next(passes)


def test_times_are_summarised_by_context_and_size() -> None:
    times = [
        *timed(16, 24, 20, tokens=1),
        *timed(40, 40, 40, tokens=3),
        *timed(65, 65, 65, tokens=8),
        *timed(20, 20, tokens=1, context=2048),
    ]
    assert cost_points(reversed(times)) == [
        CostPoint(512, 1, 20, 18, 22, 3, 1.0, None),
        CostPoint(512, 3, 40, 40, 40, 3, 2.0, 0.5),
        CostPoint(512, 8, 65, 65, 65, 3, 3.25, 0.25),
        CostPoint(2048, 1, 20, 20, 20, 2, 1.0, None),
    ]


def test_of_an_interrupted_run_what_can_be_compared_is_kept() -> None:
    times = [
        *timed(10, 10, tokens=1),
        *timed(20, tokens=2),
        *timed(40, 40, tokens=4),
        *timed(10, tokens=1, context=2048),
        *timed(20, 20, tokens=2, context=2048),
    ]
    assert [(point.context, point.tokens) for point in cost_points(times)] == [(512, 1), (512, 4)]


def test_contexts_are_cut_to_what_the_model_attends_to() -> None:
    options = CostOptions((1, 64), (512, 2048, 4096))
    assert options.within(None) == options
    assert options.within(2112).contexts == (512, 2048)
    assert options.within(100).contexts == (36,)
    with pytest.raises(UsageError, match="64 tokens does not fit into the model's context of 64"):
        options.within(64)


@pytest.mark.parametrize(
    "wrong", [{"sizes": ()}, {"contexts": ()}, {"sizes": (0,)}, {"contexts": (-1,)}, {"repeats": 1}]
)
def test_options_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CostOptions(**wrong)


def test_passes_are_compiled_if_that_is_asked(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Target] = []

    def compile(target: Target) -> None:
        compiled.append(target)

    monkeypatch.setattr(Target, "compile", compile)
    folder = str(zoo.folder_of("qwen2", None))
    opened = open_subject(folder, "cpu", "float32", random_weights=False, compile=True)
    assert compiled == [opened.target]


@pytest.mark.parametrize("random_weights", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen2_5_vl", "llava_next"])
def test_real_models_are_timed_and_so_are_random_ones(
    zoo: Zoo, family: str, random_weights: bool
) -> None:
    folder = str(zoo.folder_of(family, None))
    opened = open_subject(folder, "cpu", "float32", random_weights=random_weights)
    assert opened.context_length == 4096
    assert bool(opened.avoid) is (family != "qwen2")
    points = cost_points(time_passes(opened, CostOptions((1, 5), (16, 40), repeats=2)))
    assert [(point.context, point.tokens) for point in points] == [
        (16, 1),
        (16, 5),
        (40, 1),
        (40, 5),
    ]
