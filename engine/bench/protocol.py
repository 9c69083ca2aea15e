"""The order of a benchmark: who answers what when, and what everybody knows by then.

All contenders answer a prompt before anybody answers the next, in an order that is rotated from
prompt to prompt, so that a machine that slows down hits all alike. A repetition begins with empty
memories, or with those that an unrecorded pass over the prompts left, or with those of a file,
which is only read. Knows no document but its records, and draws nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple, cast

from engine.bench.answers import Answer, answer
from engine.bench.contenders import Contender
from engine.bench.conversations import Conversations
from engine.bench.document import PLAIN, Record
from engine.bench.foreign import generate
from engine.bench.machine import PeakMemory
from engine.bench.workloads import Task
from engine.drafters.base import Drafter
from engine.drafters.recap_native import quickened
from engine.drafters.registry import METHODS, Method
from engine.errors import RecapError, UsageError
from engine.events import Notice
from engine.files import user_path
from engine.loading import DEMO_MODEL, LoadedModel
from engine.memory.file import read_memory
from engine.memory.paths import tokenizer_fingerprint
from engine.memory.table import Tables
from engine.memory.transitions import TokenMemory
from engine.session import Session, SessionOptions
from engine.target import Form

WARM_UP_TOKENS = 16
"""Length of answers that only warm up."""
COLD, WARM = "cold", "warm"

Drafters = dict[str, Drafter]
"""What each contender of our own loop knows, by its name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        contenders: who; `plain` is one of them.
        tasks: what is asked, in this order.
        max_tokens: longest answer.
        repetitions: how often all of it is asked.
        warmup: unrecorded requests of each contender before the first one that counts.
        memory_start: `cold`, `warm` or a token memory's file.
        compile: whether the passes of our loop are compiled.
    """

    contenders: tuple[Contender, ...]
    tasks: Sequence[Task]
    max_tokens: int
    repetitions: int = 1
    warmup: int = 1
    memory_start: str = COLD
    compile: bool = False


class Step(NamedTuple):
    """One request: indices into the plan."""

    repetition: int
    task: int
    turn: int
    contender: int


def schedule(plan: Plan) -> list[Step]:
    """All requests in their order; the n-th record is that of the n-th step."""
    prompts = [
        (repetition, task, turn)
        for repetition in range(plan.repetitions)
        for task in range(len(plan.tasks))
        for turn in range(len(plan.tasks[task].turns))
    ]
    count = len(plan.contenders)
    return [
        Step(*prompt, (first + i) % count)
        for first, prompt in enumerate(prompts)
        for i in range(count)
    ]


class Benchmark:
    """Runs a plan on one loaded model.

    With the records so far, `start` and `now`, another process can go on where this one ended.

    Attributes:
        steps: the plan's requests.
        start: what contenders know when a repetition begins; who is not in it begins with nothing,
            or with the file.
        now: what they know now.
        peaks: measures the memory of each request.
    """

    def __init__(self, loaded: LoadedModel, plan: Plan) -> None:
        """Raises UsageError or MemoryFileError where a file to start from does not fit."""
        self.plan = plan
        self.steps = schedule(plan)
        self.start: Drafters = {}
        self.now: Drafters = {}
        self.peaks = PeakMemory()
        self._loaded = loaded
        # One for all, as a model's cache is large.
        self._session = Session(loaded, SessionOptions(memory=False, compile=plan.compile))
        self._tables = None if plan.memory_start in (COLD, WARM) else _tables(loaded, plan)
        self.conversations = Conversations(loaded, plan.tasks)

    def prepare(self) -> Iterator[Notice]:
        """Do what takes its time before the first request; say so before, and how long it took."""
        return self._session.prepare()

    @property
    def form(self) -> Form:
        """How passes run, once all is prepared."""
        return self._session.form

    def warm_up(self) -> Iterator[None]:
        """Let all answer the first prompt and forget it; yields after each request.

        A prompt that cannot be answered is not told here: it will be where it counts.
        """
        known = self.now
        for contender in self.plan.contenders * self.plan.warmup:
            self.now = {}
            with suppress(Exception):
                tokens = min(self.plan.max_tokens, WARM_UP_TOKENS)
                self._answer(contender, self.plan.tasks[0].id, 0, tokens)
            yield
        self.now = known

    def rehearsal(self) -> "Benchmark | None":
        """What has to be measured, and forgotten, before contenders can start warm.

        What they know `now` behind it is what they know at the `start`.
        """
        who = tuple(
            contender
            for contender in self.plan.contenders
            if contender.starts(self.plan.memory_start) == WARM or contender.name == PLAIN
        )
        if self.start or all(contender.name == PLAIN for contender in who):
            return None
        plan = replace(self.plan, contenders=who, repetitions=1, memory_start=COLD)
        rehearsal = Benchmark(self._loaded, plan)
        rehearsal._session = self._session
        return rehearsal

    def measure(self, records: Sequence[Record]) -> Iterator[Record]:
        """Go on behind these records."""
        self.conversations.hear(records)
        repetition = self.steps[len(records) - 1].repetition if records else None
        for step in self.steps[len(records) :]:
            if step.repetition != repetition:
                self.now = deepcopy(self.start)
            repetition = step.repetition
            record = self._record(step)
            self.conversations.hear([record])
            yield record

    def _record(self, step: Step) -> Record:
        contender, task = self.plan.contenders[step.contender], self.plan.tasks[step.task]
        record: dict[str, Any] = dict.fromkeys(Record.__required_keys__) | {
            "contender": contender.name,
            "task": task.id,
            "category": task.category,
            "turn": step.turn,
            "repetition": step.repetition,
        }
        self.peaks.start()
        try:
            found, seconds = self._answer(contender, task.id, step.turn, self.plan.max_tokens)
        except Exception as error:  # a contender's failure is a row, whoever's fault it is
            record["error"] = _one_line(error)
        else:
            record |= {
                "token_ids": found.token_ids,
                "finish_reason": found.finish_reason,
                "prompt_tokens": found.prompt_tokens,
                "image_tokens": found.image_tokens,
                "total_s": round(seconds, 6),
                "peak_memory_bytes": self.peaks.cpu_bytes(),
                "peak_gpu_memory_bytes": self.peaks.gpu_bytes(),
                "committed": found.committed,
                **found.measures,
            }
            if self._loaded.name == DEMO_MODEL:
                decode = self._loaded.encoder.tokenizer.decode
                record["pieces"] = [decode([token]) for token in found.token_ids]
        return cast(Record, record)

    def _answer(
        self, contender: Contender, task: str, turn: int, max_tokens: int
    ) -> tuple[Answer, float]:
        """The answer, and how many seconds the request took, opening its pictures included."""
        request = self.conversations.request(task, turn, max_tokens)
        drafter = self._drafter(contender)
        started = perf_counter() - request.elapsed_s
        if drafter is None:
            found = generate(self._loaded, contender, request)
        else:
            found = answer(self._session, drafter, request)
        return found, perf_counter() - started

    def _drafter(self, contender: Contender) -> Drafter | None:
        """What a contender knows; None outside our loop."""
        if contender.foreign:
            return None
        if contender.name not in self.now:
            tables = self._tables if contender.takes_file else None
            memory = TokenMemory(*(tables or ()))
            placeholders = self._loaded.encoder.placeholder_ids
            method = cast(Method, contender.method)
            options = self._session.fitted(method, contender.options)
            drafter = METHODS[method].make(options, memory, placeholders)
            self.now[contender.name] = quickened(drafter)
        return self.now[contender.name]


def _tables(loaded: LoadedModel, plan: Plan) -> Tables:
    """The rows of the file to start from."""
    fingerprint = tokenizer_fingerprint(loaded.encoder.tokenizer.get_vocab())
    stored = read_memory(user_path(plan.memory_start), fingerprint)
    if stored is None:
        raise UsageError(
            f"there is no token memory {plan.memory_start}; start {COLD}, {WARM} or from a file"
        )
    return stored[1].below(loaded.model.config.get_text_config().vocab_size)


def _one_line(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if isinstance(error, RecapError) else f"unexpected {type(error).__name__}: {line}"
