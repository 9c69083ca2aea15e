"""A benchmark from its flags to its results: loaded, measured, kept on disk, published.

Who answers what when is `engine.bench.protocol`'s business, what is drawn `bench_report`'s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import RequestError, UsageError
from recap_cli import bench_plot, sessions
from recap_cli.bench_report import Format, check_output, publish
from recap_cli.bench_stages import Stages
from recap_cli.bench_work import Work, fingerprint
from recap_cli.options import Device, DeviceMap, DType
from recap_cli.records import versions
from recap_cli.signals import Interrupted, Interrupts
from recap_cli.terminal import utf8

if TYPE_CHECKING:
    from engine.bench.document import Document, Header, Record
    from engine.bench.journal import Journal, Memories
    from engine.bench.protocol import Benchmark
    from engine.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, as the flags have it."""

    work: Work
    model: str
    device: Device
    device_map: DeviceMap | None
    dtype: DType
    compile: bool
    max_tokens: int
    methods: Sequence[str]
    sizes: Sequence[int]
    repetitions: int
    memory_start: str
    resume: bool
    format: Format
    output: Path | None
    plot: Path | None

    def __post_init__(self) -> None:
        """Refuse what would only fail in the end."""
        if self.resume and self.output is None:
            raise UsageError("--resume goes on with a run that has -o FILE: name the same file")
        check_output(self.output)
        if self.plot is not None:
            bench_plot.check(self.plot)
        if self.compile and self.device_map:
            raise UsageError("--compile and --device-map exclude each other")


class Run:
    """A benchmark that goes on.

    Attributes:
        header: what is known of it before its first request.
        requests: how many there are in all.
        records: the finished ones.
        journal: keeps them; None where there is no file to keep them beside.
    """

    def __init__(self, job: Job, stages: Stages) -> None:
        """Load the model, and what there is of an interrupted run.

        Raises:
            RecapError: something asked for cannot be.
        """
        sessions.import_libraries()
        from engine.bench.contenders import contenders  # noqa: PLC0415
        from engine.bench.protocol import Benchmark, Plan  # noqa: PLC0415

        who = tuple(contenders(job.methods, job.sizes))
        self.journal = _journal(job)
        tasks = tuple(job.work.tasks(stages.note))
        plan = Plan(
            who,
            tasks,
            job.max_tokens,
            job.repetitions,
            memory_start=job.memory_start,
            compile=job.compile,
        )
        stages.say(f"loading {job.model} ...")
        self._loaded = sessions.load_model(
            model=job.model,
            device=job.device,
            device_map=job.device_map,
            dtype=job.dtype,
            progress=stages.animated,
        )
        if job.work.demo and not self._loaded.family.vision:
            raise UsageError(f"{self._loaded.name} only reads text: name prompts with --prompts")
        self._bench = Benchmark(self._loaded, plan)
        for notice in self._bench.prepare():
            stages.note(notice.message)
        self.header = _header(job, self._loaded, self._bench)
        self.requests = len(self._bench.steps)
        self.records: list[Record] = []
        if self.journal is None:
            return
        if not job.resume:
            self.journal.begin(self.header)
        elif self.journal.there:
            before = self.journal.resume(self.header)
            self.records, (self._bench.start, self._bench.now) = before.records, before.memories
            if before.again:
                stages.note(
                    f"{before.again} requests are measured again, as what they taught is lost"
                )
        else:
            stages.note(f"there is no {self.journal.path} to resume; starting anew")
            self.journal.begin(self.header)

    def measure(self, stages: Stages) -> None:
        """Warm up, rehearse, measure and compare, as far as `stages` lets it."""
        from engine.bench.document import mark_differences  # noqa: PLC0415
        from engine.bench.gaps import measure_gaps, partings  # noqa: PLC0415

        bench, plan, count = self._bench, self._bench.plan, self.requests
        if len(self.records) < count:
            requests = plan.warmup * len(plan.contenders)
            _exhaust(stages.through("warming up", bench.warm_up(), requests))
            self._rehearse(stages)
        measured = bench.measure(self.records)
        for record in stages.through("measuring", measured, count, done=len(self.records)):
            self.records.append(record)
            if self.journal is not None:
                self.journal.append(record, self.memories)
        if len(self.records) == count:
            mark_differences(self.records)
            found = partings(self.records)
            compared = measure_gaps(self._loaded, bench.conversations, found, plan)
            _exhaust(stages.through("comparing", compared, len(found)))

    def memories(self) -> "Memories":
        """What contenders know, as of the last record."""
        return self._bench.start, self._bench.now

    def document(self) -> "Document":
        """What there is so far."""
        from engine.bench.document import assemble  # noqa: PLC0415

        return assemble(self.header, self.records)

    def _rehearse(self, stages: Stages) -> None:
        """Teach contenders what they are to know at the start, wholly or not at all."""
        rehearsal = self._bench.rehearsal()
        if rehearsal is not None:
            count = len(rehearsal.steps)
            heard = list(stages.through("rehearsing", rehearsal.measure([]), count))
            if len(heard) == count:
                self._bench.start = rehearsal.now


def run(job: Job) -> None:
    """Measure and publish; what is interrupted is kept, or published as far as it came.

    Raises:
        RecapError: something asked for cannot be, or not one request was answered.
        Interrupted: a signal ended it.
    """
    with Interrupts() as interrupts, Stages(interrupts) as stages:
        going = Run(job, stages)
        try:
            going.measure(stages)
            if going.journal is not None and interrupts.signum is not None:
                going.journal.save(going.memories())
        except Interrupted as leaving:
            interrupts.signum = leaving.signum
    if interrupts.signum is None:
        _publish(job, going)
        return
    _keep(job, going, stages)
    raise Interrupted(interrupts.signum)


def _publish(job: Job, going: Run) -> None:
    document = going.document()
    publish(document, job.format, job.output)
    if job.plot is not None:
        bench_plot.plot(document, job.plot)
    if going.journal is not None:
        going.journal.delete()
    errors = [record["error"] for record in going.records]
    if all(errors):
        raise RequestError(f"not one request was answered: {errors[0]}")


def _keep(job: Job, going: Run, stages: Stages) -> None:
    """Say what became of the finished part of an interrupted run."""
    finished = f"{len(going.records)} of {going.requests} requests are finished"
    if going.journal is not None:
        stages.say(
            f"{finished} and kept in {going.journal.path}; the same command with --resume goes on, "
            f"and recap bench report {going.journal.path} shows them"
        )
    elif going.records:
        publish(going.document(), job.format, None)
        stages.say(f"{finished}; a run with -o FILE can be resumed")


def _journal(job: Job) -> "Journal | None":
    """The journal beside the results' file; none beside what is not a file, such as /dev/null."""
    from engine.bench.journal import Journal  # noqa: PLC0415

    if job.output is None or (job.output.exists() and not job.output.is_file()):
        return None
    journal = Journal(job.output)
    if journal.there and not job.resume:
        raise UsageError(
            f"{journal.path} holds an interrupted run: go on with --resume, or delete it"
        )
    return journal


def _header(job: Job, loaded: "LoadedModel", bench: "Benchmark") -> "Header":
    from engine.bench.document import FORMAT  # noqa: PLC0415
    from engine.bench.machine import machine  # noqa: PLC0415

    plan, device = bench.plan, loaded.model.device
    return {
        "format": FORMAT,
        "machine": machine(device),
        "versions": versions(),
        "settings": {
            "model": utf8(loaded.name),
            "device": str(device),
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
            "compile": plan.compile,
            "operators": bench.form == "operators",
            "max_tokens": plan.max_tokens,
            "repetitions": plan.repetitions,
            "warmup": plan.warmup,
            "memory_start": utf8(plan.memory_start),
            "workload": job.work.described(len(plan.tasks)),
            "prompts": fingerprint(plan.tasks),
            "turns": job.work.turns.value,
            "peak_memory": bench.peaks.of,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        "contenders": [contender.row(plan.memory_start) for contender in plan.contenders],
        "tasks": [
            {"id": task.id, "category": task.category, "turns": len(task.turns)}
            for task in plan.tasks
        ],
    }


def _exhaust(stage: Iterable[None]) -> None:
    for _ in stage:
        pass
