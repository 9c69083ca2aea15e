"""A benchmark's summary as tables of text, whatever they are drawn with afterwards.

Chooses columns, digits and words; computes no measure (see `engine.bench.summary`).
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from engine.bench.attributes import Split, split_attributes
from engine.bench.document import CONTROL, PLAIN, Document
from engine.bench.speedups import Spread
from engine.bench.summary import Failure, Row, Summary, summarise
from engine.stats import SOURCES
from recap_cli.grids import NOTHING, Grid, Report

_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_NAMED = 3
"""Failed prompts that are named; the document has them all."""


_Column = tuple[str, Callable[[Row], str]]


def tables(document: Document) -> Report:
    """The tables: overall, by category, and those for which there is something to show."""
    summary = summarise(document)
    per_request = document["settings"]["peak_memory"] == "request"
    grids = (
        _speed(summary.overall),
        _differences(summary.overall),
        _cost(summary.overall, with_memory=per_request),
        _depths(summary.overall),
        _sources(summary.overall),
        *_categories(summary),
        _attributes(split_attributes(document), summary),
    )
    return Report(tuple(grid for grid in grids if grid.rows), _circumstances(document))


def _speed(rows: Sequence[Row]) -> Grid:
    columns: list[_Column] = [
        ("same tokens", lambda row: f"{row.identical}/{row.compared}" if row.compared else NOTHING),
        ("decode speed-up", lambda row: _times(row.plain.decode)),
        ("quartiles", _quartiles),
        ("whole request", lambda row: _times(row.plain.e2e)),
        ("total time", lambda row: _figure(row.plain.total, "x")),
        ("over generate()", lambda row: _times(row.generate.e2e)),
    ]
    return _grid("Speed", columns, rows, (*_explained(rows), *_failures(rows)))


def _explained(rows: Sequence[Row]) -> Iterable[str]:
    yield (
        "Speed-ups are over plain, the same loop without drafts: medians of the ratios of time per"
        " token, prompt by prompt; total time is that of all requests together."
    )
    if any(row.generate.e2e for row in rows):
        yield "Over transformers' own generate() whole requests are compared."
    if any(row.contender == CONTROL for row in rows):
        yield f"{CONTROL} is plain once more: how far it is from 1.00x is noise."


def _differences(rows: Iterable[Row]) -> Grid:
    """Where answers leave the plain loop's; no rows where none does."""
    return Grid(
        "Largest logit gap at which an answer first differs from plain's",
        ("", "answers", "gap", "at token", "prompt"),
        tuple(
            (
                row.contender,
                str(row.compared - row.identical),
                NOTHING if row.difference.gap is None else f"{row.difference.gap:.3g}",
                str(row.difference.position),
                _prompt(row.difference.task, row.difference.turn),
            )
            for row in rows
            if row.difference
        ),
    )


def _cost(rows: Sequence[Row], *, with_memory: bool) -> Grid:
    columns: list[_Column] = [
        ("MAT", lambda row: _figure(row.mean_acceptance_length)),
        ("nodes /pass", lambda row: _digits(row.nodes_per_pass)),
        ("ms /pass", lambda row: _digits(row.ms_per_pass)),
        ("draft ms", lambda row: _figure(row.draft_ms_per_pass)),
        ("tokens /s", lambda row: _digits(row.decode_tokens_per_s)),
        ("first token", lambda row: _milliseconds(row.ttft_s)),
        ("GPU peak", lambda row: _megabytes(row.peak_gpu_memory_bytes)),
    ]
    if with_memory:
        columns.append(("peak", lambda row: _megabytes(row.peak_memory_bytes)))
    return _grid("Passes: MAT is tokens a pass commits", columns, rows)


def _depths(rows: Iterable[Row]) -> Grid:
    def share(depth: int) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            shares = row.usual_acceptance_by_depth
            return _percent(shares[depth - 1]) if depth <= len(shares) else NOTHING

        return cell

    columns = [(f"{depth}", share(depth)) for depth in _DEPTHS]
    drafting = [row for row in rows if row.passes_by_depth]
    return _grid("Accepted at depth, of the passes whose tree got there", columns, drafting)


def _sources(rows: Sequence[Row]) -> Grid:
    def share(name: str) -> Callable[[Row], str]:
        return lambda row: _percent(row.sources[name]) if name in row.sources else NOTHING

    columns = [(name, share(name)) for name in SOURCES]
    return _grid("Accepted drafts by source", columns, [row for row in rows if row.sources])


def _categories(summary: Summary) -> Iterable[Grid]:
    if len(summary.categories) < 2:
        return
    measures: list[_Column] = [
        ("Decode speed-up by category", lambda row: _times(row.plain.decode)),
        ("MAT by category", lambda row: _figure(row.mean_acceptance_length)),
    ]
    heads = ("", *(name.replace("_", " ") for name in summary.categories))
    for title, measure in measures:
        cells = zip(*([*map(measure, rows)] for rows in summary.categories.values()), strict=True)
        lines = zip(summary.overall, cells, strict=True)
        yield Grid(
            title,
            heads,
            tuple((row.contender, *line) for row, line in lines if {*line} != {NOTHING}),
        )


def _attributes(splits: Iterable[Split], summary: Summary) -> Grid:
    order = [row.contender for row in summary.overall]
    return Grid(
        "Words that depend on the picture, and the rest, in prompts with two pictures",
        ("", "words", "foreseen", "MAT", "rest", "foreseen", "MAT"),
        tuple(
            (
                split.contender,
                *(
                    cell
                    for part in (split.attributes, split.rest)
                    for cell in (
                        str(part.tokens),
                        NOTHING if part.foreseen is None else _percent(part.foreseen),
                        _figure(part.mean_acceptance_length),
                    )
                ),
            )
            for split in sorted(splits, key=lambda split: order.index(split.contender))
            if (split.attributes + split.rest).foreseen
        ),
        (
            "In tokens. Foreseen are those that were drafted; MAT is tokens over the passes that"
            " ended at one of them.",
        ),
    )


def _grid(
    title: str, columns: Sequence[_Column], rows: Iterable[Row], notes: Sequence[str] = ()
) -> Grid:
    """A table of these columns, without those that nobody has anything in."""
    cells = [(row.contender, *(cell(row) for _, cell in columns)) for row in rows]
    heads = ("", *(head for head, _ in columns))
    used = [i for i in range(len(heads)) if not i or {line[i] for line in cells} - {NOTHING}]
    return Grid(
        title,
        tuple(heads[i] for i in used),
        tuple(tuple(line[i] for i in used) for line in cells),
        tuple(notes),
    )


def _failures(rows: Iterable[Row]) -> Iterable[str]:
    """Who failed at what and why; those of whom the same is to be said, together."""
    who: dict[str, list[str]] = {}
    for row in rows:
        if row.failed is not None:
            who.setdefault(f"answered nothing: {row.failed}", []).append(row.contender)
        elif row.failures:
            who.setdefault(f"failed at {_named(row.failures)}", []).append(row.contender)
    return (f"{', '.join(names)} {what}" for what, names in who.items())


def _named(failures: Sequence[Failure]) -> str:
    prompts = [_prompt(failure.task, failure.turn) for failure in failures]
    more = f" and {len(prompts) - _NAMED} more" if len(prompts) > _NAMED else ""
    named = f"{_counted(len(prompts), 'prompt')} ({', '.join(prompts[:_NAMED])}{more})"
    return f"{named}: {failures[0].error}"


def _circumstances(document: Document) -> str:
    machine, settings, versions = document["machine"], document["settings"], document["versions"]
    memory = machine["memory_bytes"]
    groups = (
        *_unfinished(document),
        (
            settings["model"],
            f"{settings['dtype']} on {settings['device']}",
            *(("passes of our loop compiled",) if settings.get("compile") else ()),
            *(("with operators in C++",) if settings.get("operators") else ()),
        ),
        (
            settings["workload"],
            _counted(_prompts(document), "prompt"),
            f"at most {_counted(settings['max_tokens'], 'new token')}",
        ),
        (
            _counted(settings["repetitions"], "repetition"),
            f"{settings['warmup']} to warm up",
            f"memory {settings['memory_start']}",
        ),
        (
            *((machine["gpu"],) if machine["gpu"] else ()),
            machine["cpu"],
            f"{_counted(machine['threads'], 'thread')} on {_counted(machine['cores'], 'core')}",
            *((f"{memory / 2**30:.0f} GB",) if memory else ()),
            machine["platform"],
        ),
        tuple(f"{name} {version}" for name, version in versions.items() if version),
        (f"{datetime.fromisoformat(settings['started']):%Y-%m-%d}",),
    )
    return "; ".join(", ".join(group) for group in groups)


def _unfinished(document: Document) -> Iterable[tuple[str, ...]]:
    rounds = _prompts(document) * document["settings"]["repetitions"]
    planned, done = rounds * len(document["contenders"]), len(document["records"])
    if done < planned:
        yield (f"unfinished: {done} of {planned} requests",)


def _prompts(document: Document) -> int:
    return sum(task["turns"] for task in document["tasks"])


def _prompt(task: str, turn: int) -> str:
    return f"{task} (turn {turn + 1})" if turn else task


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _times(spread: Spread | None) -> str:
    return NOTHING if spread is None else _figure(spread.median, "x")


def _quartiles(row: Row) -> str:
    spread = row.plain.decode
    if spread is None or spread.count < 2 or row.contender == PLAIN:
        return NOTHING
    return f"{spread.low:.2f}-{spread.high:.2f}"


def _figure(value: float | None, unit: str = "") -> str:
    return NOTHING if value is None else f"{value:.2f}{unit}"


def _digits(value: float | None) -> str:
    """One digit behind the point, none of a large figure."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def _milliseconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{1e3 * seconds:.0f} ms"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _megabytes(number: int | None) -> str:
    return NOTHING if number is None else f"{number / 2**20:.0f} MB"
