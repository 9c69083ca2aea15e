"""Who answers what when, and what everybody knows by then."""

import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.bench.answers import Answer, answer
from engine.bench.contenders import contenders
from engine.bench.document import Record
from engine.bench.protocol import Benchmark, Plan, schedule
from engine.bench.workloads import Task, TaskTurn
from engine.drafters.base import Drafter, PlainDrafter
from engine.errors import ForeignMemory, UsageError
from engine.loading import LoadedModel
from engine.prompts import Message
from engine.session import Request, Session
from tests.models import picture
from tests.zoo import Zoo, finished, session

QUESTIONS = ("How many circles are there?", "Is the red square larger?")
SINGLE = tuple(Task(f"q{i}", "text", (TaskTurn(text),)) for i, text in enumerate(QUESTIONS))
CHAT = Task("chat", "talk", tuple(map(TaskTurn, QUESTIONS)))
LOST = Task("lost", "seen", (TaskTurn("What?", ("/nowhere/a.png",)), TaskTurn("And?")))
TOKENS = 10
LEARNERS = ("token-recycling", "suffix", "racer", "recap:16")
"""Those that answer a prompt in fewer passes once they have answered it."""


@pytest.fixture(scope="module")
def text_model(zoo: Zoo) -> LoadedModel:
    return zoo.loaded("llama", torch.float32, None)


def plan(*names: str, tasks: Sequence[Task] = SINGLE, **options: Any) -> Plan:
    return Plan(tuple(contenders(names)), tuple(tasks), max_tokens=TOKENS, **options)


@pytest.fixture(scope="module")
def cold(text_model: LoadedModel) -> list[Record]:
    """Two cold repetitions of all who learn."""
    return measured(text_model, plan(*LEARNERS, repetitions=2))


@pytest.fixture(scope="module")
def warm(text_model: LoadedModel) -> list[Record]:
    """Two warm repetitions of them."""
    return measured(text_model, plan(*LEARNERS, repetitions=2, memory_start="warm"))


def measured(loaded: LoadedModel, plan: Plan) -> list[Record]:
    """All records of a plan, from whatever it is to start from."""
    benchmark = Benchmark(loaded, plan)
    if rehearsal := benchmark.rehearsal():
        list(rehearsal.measure([]))
        benchmark.start = rehearsal.now
    return list(benchmark.measure([]))


class TestSchedule:
    """The order."""

    def test_all_answer_a_prompt_before_anybody_answers_the_next(self) -> None:
        steps = schedule(plan("recap", tasks=[SINGLE[0], CHAT], repetitions=2))
        prompts = [step[:3] for step in steps]
        assert prompts == sorted(prompts)
        assert set(Counter(prompts).values()) == {4}
        assert len(set(steps)) == len(steps) == 2 * 3 * 4

    def test_everybody_is_first_equally_often(self) -> None:
        steps = schedule(plan("recap", tasks=SINGLE[:2], repetitions=2))
        assert [step.contender for step in steps[::4]] == [0, 1, 2, 3]
        assert [step.contender for step in steps[4:8]] == [1, 2, 3, 0]


class TestRecords:
    """What is said of each request."""

    def test_they_follow_the_schedule(self, cold: list[Record]) -> None:
        ours = plan(*LEARNERS, repetitions=2)
        told = [(r["repetition"], r["task"], r["turn"], r["contender"]) for r in cold]
        assert told == [
            (step.repetition, SINGLE[step.task].id, step.turn, ours.contenders[step.contender].name)
            for step in schedule(ours)
        ]

    def test_all_answers_are_the_plain_loop_s(
        self, text_model: LoadedModel, cold: list[Record], warm: list[Record]
    ) -> None:
        for found in (cold, warm, measured(text_model, plan(tasks=SINGLE[:1]))):
            plain = {r["task"]: r["token_ids"] for r in found if r["contender"] == "plain"}
            assert [r["error"] for r in found] == [None] * len(found)
            assert all(r["token_ids"] == plain[r["task"]] for r in found)

    def test_tokens_and_passes_add_up(self, cold: list[Record]) -> None:
        for record in cold:
            ids, committed = record["token_ids"], record["committed"]
            assert ids is not None
            assert committed is not None
            assert sum(committed) == len(ids) - 1
            assert len(committed) == record["passes"]
            assert record["prompt_tokens"]
            assert record["total_s"]
            assert record["peak_memory_bytes"]
            assert record["peak_gpu_memory_bytes"] is None
            assert "pieces" not in record

    def test_pictures_are_opened_and_their_time_is_counted(
        self, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        picture(60, 40, seed=7).save(tmp_path / "a.png")
        task = Task("picture", "seen", (TaskTurn("What is it?", (str(tmp_path / "a.png"),)),))
        vision = zoo.loaded("qwen2_5_vl", torch.float32, None)
        benchmark = Benchmark(vision, plan("recap", tasks=[task]))
        assert benchmark.conversations.request("picture", 0, 4).elapsed_s > 0
        found = list(benchmark.measure([]))
        expected = finished(
            session(vision, "plain"),
            [Message("user", "What is it?", (picture(60, 40, seed=7),))],
            TOKENS,
        )
        assert {tuple(r["token_ids"] or ()) for r in found} == {tuple(expected.token_ids)}
        assert {r["image_tokens"] for r in found} == {expected.image_tokens}

    def test_conversations_go_on_from_the_plain_loop_s_answers(
        self, text_model: LoadedModel
    ) -> None:
        benchmark = Benchmark(text_model, plan("recap", tasks=[CHAT]))
        found = list(benchmark.measure([]))
        plain = [r["token_ids"] or [] for r in found if r["contender"] == "plain"]
        decode = text_model.encoder.tokenizer.decode
        talk = benchmark.conversations.request("chat", 1, TOKENS).messages
        assert [message.text for message in talk] == [
            *(QUESTIONS[0], decode(plain[0], skip_special_tokens=True)),
            QUESTIONS[1],
        ]
        for turn in range(2):
            asked = {r["prompt_tokens"] for r in found if r["turn"] == turn}
            assert len(asked) == 1, "everybody answers the same"

    def test_the_demo_model_s_tokens_are_there_as_text(self, text_model: LoadedModel) -> None:
        demo = replace(text_model, name="demo")
        for record in measured(demo, plan("recap", tasks=SINGLE[:1])):
            assert len(record["pieces"]) == len(record["token_ids"] or ())


class TestFailures:
    """A failure is a row, not the end."""

    def test_a_missing_picture_fails_its_task_for_all(self, text_model: LoadedModel) -> None:
        found = measured(text_model, plan("recap", tasks=[LOST, SINGLE[0]]))
        errors = {(r["task"], r["turn"]): r["error"] for r in found}
        assert "/nowhere/a.png: there is no folder /nowhere" in str(errors["lost", 0])
        assert errors["lost", 1]
        assert errors["q0", 0] is None

    def test_without_the_plain_loop_s_answer_there_is_nothing_to_go_on_from(
        self, text_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(session: Session, drafter: Drafter, request: Request) -> Answer:
            if isinstance(drafter, PlainDrafter):
                raise RuntimeError("no\nplain")
            return answer(session, drafter, request)

        monkeypatch.setattr("engine.bench.protocol.answer", broken)
        found = measured(text_model, plan("recap", tasks=[CHAT]))
        errors = {(r["contender"], r["turn"]): r["error"] for r in found}
        assert errors["plain", 0] == "unexpected RuntimeError: no plain"
        assert errors["recap", 0] is None
        assert errors["recap", 1] == "turn 1 has no answer of plain to go on from"

    def test_a_failed_request_has_no_figures(self, text_model: LoadedModel) -> None:
        for record in measured(text_model, plan("recap", tasks=[LOST])):
            known = {key for key, value in record.items() if value is not None}
            assert known == {"contender", "task", "category", "turn", "repetition", "error"}

    def test_a_failing_first_prompt_does_not_stop_the_warm_up(
        self, text_model: LoadedModel
    ) -> None:
        assert len(list(Benchmark(text_model, plan("recap", tasks=[LOST])).warm_up())) == 4


def passes(records: Sequence[Record], contender: str, repetition: int = 0) -> list[int]:
    """Passes that a contender needed, task by task."""
    return [
        record["passes"] or 0
        for record in records
        if record["contender"] == contender and record["repetition"] == repetition
    ]


class TestMemories:
    """What contenders know: one that remembers answers the second time in fewer passes."""

    @pytest.mark.parametrize("name", LEARNERS)
    def test_each_repetition_starts_cold(self, cold: list[Record], name: str) -> None:
        assert passes(cold, name, 0) == passes(cold, name, 1)

    @pytest.mark.parametrize("name", LEARNERS)
    def test_each_repetition_starts_warm(
        self, cold: list[Record], warm: list[Record], name: str
    ) -> None:
        assert passes(warm, name, 0) == passes(warm, name, 1)
        assert passes(warm, name)[0] < passes(cold, name)[0], "its prompt is known already"

    def test_they_learn_from_prompt_to_prompt(self, text_model: LoadedModel) -> None:
        twice = [SINGLE[0], replace(SINGLE[0], id="again")]
        found = measured(text_model, plan(*LEARNERS, tasks=twice))
        for name in LEARNERS:
            first, again = passes(found, name)
            assert again < first

    def test_warming_up_teaches_nothing(self, text_model: LoadedModel, cold: list[Record]) -> None:
        benchmark = Benchmark(text_model, plan(*LEARNERS))
        assert len(list(benchmark.warm_up())) == len(benchmark.plan.contenders)
        found = list(benchmark.measure([]))
        assert all(passes(found, name) == passes(cold, name) for name in LEARNERS)

    def test_a_file_is_where_they_start_and_is_not_written(
        self, text_model: LoadedModel, cold: list[Record], tmp_path: Path
    ) -> None:
        file = tmp_path / "memory.safetensors"
        with session(text_model, memory_file=file) as ours:
            finished(ours, [Message("user", QUESTIONS[0])], TOKENS)
        before = file.read_bytes()
        found = measured(text_model, plan(*LEARNERS, repetitions=2, memory_start=str(file)))
        for name in LEARNERS:
            assert passes(found, name, 0) == passes(found, name, 1)
            if name != "suffix":
                assert passes(found, name)[0] < passes(cold, name)[0]
        assert passes(found, "suffix") == passes(cold, "suffix"), "it takes no such file"
        assert file.read_bytes() == before

    def test_a_file_that_is_missing_is_refused(self, text_model: LoadedModel) -> None:
        with pytest.raises(UsageError, match="there is no token memory lukewarm; start cold, warm"):
            Benchmark(text_model, plan(memory_start="lukewarm"))

    def test_a_file_of_another_tokenizer_is_refused(
        self, zoo: Zoo, text_model: LoadedModel, tmp_path: Path
    ) -> None:
        file = tmp_path / "memory.safetensors"
        with session(zoo.loaded("qwen2_5_vl", torch.float32, None), memory_file=file) as other:
            finished(other, [Message("user", QUESTIONS[0])], TOKENS)
        with pytest.raises(ForeignMemory):
            Benchmark(text_model, plan(memory_start=str(file)))

    @pytest.mark.parametrize(("start", "done"), [("cold", 5), ("cold", 14), ("warm", 17)])
    def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
        self, text_model: LoadedModel, request: pytest.FixtureRequest, start: str, done: int
    ) -> None:
        whole: list[Record] = request.getfixturevalue(start)
        ours = plan(*LEARNERS, repetitions=2, memory_start=start)
        first = Benchmark(text_model, ours)
        if rehearsal := first.rehearsal():
            list(rehearsal.measure([]))
            first.start = rehearsal.now
        running = first.measure([])
        records = [next(running) for _ in range(done)]
        second = Benchmark(text_model, ours)
        second.start, second.now = pickle.loads(pickle.dumps((first.start, first.now)))
        assert second.rehearsal() is None
        list(second.warm_up())
        records += second.measure(records)
        for one, other in zip(records, whole, strict=True):
            for key in ("contender", "task", "token_ids", "committed", "drafted_tokens"):
                assert one[key] == other[key]
