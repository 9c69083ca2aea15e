"""What a benchmark's records say: one row of measures a contender, overall and by category.

Pure functions of the document, under the names and definitions of DESIGN section 4; knows no tensor
and no terminal. A *prompt* is one turn of one task; a repetition runs it again.

- Counts are pooled: a rate is a sum over all finished records divided by another, so that a long
  answer weighs more than a short one. The time to the first token is a median.
- Speed-ups are medians of ratios, see `speedups`.
- The first token comes from the prefill. An answer of one token thus has no pass and no decode time
  per token: it counts for the time to the first token, for whole requests and for identity only.
- A record that failed is counted and named and enters nothing else; in a speed-up it takes the
  other record of its pair with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from engine.bench.document import GENERATE, PLAIN, ContenderRow, Document, Record
from engine.bench.speedups import Speedups, decoded, ratio, speedups

_RARE = 0.01


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first token at which an answer is not the plain loop's.

    Attributes:
        position: index of that token in the answer.
        gap: by how much the plain loop's logits prefer its own token there; None if not known.
    """

    task: str
    turn: int
    position: int
    gap: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A prompt that a contender could not answer."""

    task: str
    turn: int
    error: str


@dataclass(frozen=True, slots=True)
class Row:
    """The measures of one contender, overall or in one category; None where there are none.

    Attributes:
        category: None is overall.
        failed: why the contender could not run at all.
        prompts: how many it answered at least once.
        failures: each prompt that failed, with its first error.
        identical, compared: prompts answered token for token as by the plain loop, in every
            repetition, of those that both answered.
        difference: of the answers that differ, the one whose gap is largest.
        passes: verify passes, all repetitions together.
        nodes_per_pass: draft tokens a verify pass carried beside the root.
        acceptance_by_depth: of the passes whose tree reached depth d + 1, the share that accepted
            a node there, by d; `passes_by_depth` has how many reached it.
        sources: share of accepted draft tokens by where they came from; without those of 0.
        ttft_s: median time to the first token.
        plain, generate: speed-ups against the plain loop and against transformers' `generate()`.
    """

    contender: str
    category: str | None
    failed: str | None
    prompts: int
    failures: tuple[Failure, ...]
    identical: int
    compared: int
    difference: FirstDifference | None
    passes: int | None
    mean_acceptance_length: float | None
    nodes_per_pass: float | None
    acceptance_by_depth: tuple[float, ...]
    passes_by_depth: tuple[int, ...]
    sources: dict[str, float]
    ms_per_pass: float | None
    draft_ms_per_pass: float | None
    decode_tokens_per_s: float | None
    ttft_s: float | None
    peak_memory_bytes: int | None
    peak_gpu_memory_bytes: int | None
    plain: Speedups
    generate: Speedups

    @property
    def usual_acceptance_by_depth(self) -> tuple[float, ...]:
        """`acceptance_by_depth` as far as one pass in a hundred got; beyond that chance rules."""
        usual = sum(count > _RARE * (self.passes or 0) for count in self.passes_by_depth)
        return self.acceptance_by_depth[:usual]


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows by overall decode speed-up, the fastest first; those without one come last."""

    overall: tuple[Row, ...]
    categories: dict[str, tuple[Row, ...]]


def summarise(document: Document) -> Summary:
    """All rows of a benchmark's document, however much of it is finished."""
    records = document["records"]
    overall = sorted((_row(c, None, records) for c in document["contenders"]), key=_slowness)
    order = {row.contender: place for place, row in enumerate(overall)}
    contenders = sorted(document["contenders"], key=lambda contender: order[contender["name"]])
    categories: dict[str, list[Record]] = {task["category"]: [] for task in document["tasks"]}
    for record in records:
        categories[record["category"]].append(record)
    return Summary(
        tuple(overall),
        {
            name: tuple(_row(contender, name, theirs) for contender in contenders)
            for name, theirs in categories.items()
        },
    )


def finished(records: Iterable[Record]) -> list[Record]:
    """The records that count."""
    return [record for record in records if record["error"] is None]


def _slowness(row: Row) -> float:
    return -row.plain.decode.median if row.plain.decode else 0.0


def _row(contender: ContenderRow, category: str | None, records: Sequence[Record]) -> Row:
    """One contender's row; `records` are those of all contenders."""

    def of(name: str) -> list[Record]:
        return [record for record in records if record["contender"] == name]

    mine = of(contender["name"])
    done, plain = finished(mine), finished(of(PLAIN))
    identical, compared, difference = _identity(done, plain)
    reached, shares = _depths(done)
    passes, decode_s = _total(done, "passes"), _total(done, "decode_s")
    tokens = sum(map(decoded, done))
    return Row(
        contender=contender["name"],
        category=category,
        failed=contender["failed"],
        prompts=len(set(map(_prompt, done))),
        failures=_failures(mine),
        identical=identical,
        compared=compared,
        difference=difference,
        passes=passes or None,
        mean_acceptance_length=ratio(tokens, passes),
        nodes_per_pass=_a_pass(done, lambda record: record["drafted_tokens"]),
        acceptance_by_depth=shares,
        passes_by_depth=reached,
        sources=_sources(done),
        ms_per_pass=ratio(1e3 * decode_s, passes),
        draft_ms_per_pass=_a_pass(done, _draft_ms),
        decode_tokens_per_s=ratio(tokens, decode_s),
        ttft_s=median(times) if (times := _known(done, "ttft_s")) else None,
        peak_memory_bytes=max(_known(done, "peak_memory_bytes"), default=None),
        peak_gpu_memory_bytes=max(_known(done, "peak_gpu_memory_bytes"), default=None),
        plain=speedups(done, plain),
        generate=speedups(done, finished(of(GENERATE))),
    )


def _identity(
    done: Iterable[Record], plain: Iterable[Record]
) -> tuple[int, int, FirstDifference | None]:
    """Prompts answered as by the plain loop, prompts compared, and the most telling difference."""
    # Differences are from the plain loop's first repetition.
    answered = {_prompt(record) for record in plain if record["repetition"] == 0}
    compared = [record for record in done if _prompt(record) in answered]
    found: dict[tuple[str, int], FirstDifference] = {}
    for record in compared:
        if record["difference"] is not None:
            found.setdefault(
                _prompt(record), FirstDifference(*_prompt(record), **record["difference"])
            )
    prompts = set(map(_prompt, compared))
    largest = max(found.values(), key=lambda d: -1.0 if d.gap is None else d.gap, default=None)
    return len(prompts) - len(found), len(prompts), largest


def _failures(mine: Iterable[Record]) -> tuple[Failure, ...]:
    failed: dict[tuple[str, int], str] = {}
    for record in mine:
        if record["error"] is not None:
            failed.setdefault(_prompt(record), record["error"])
    return tuple(Failure(*prompt, error) for prompt, error in failed.items())


def _depths(done: Iterable[Record]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """How many passes reached each depth, and the share of them that accepted a node there."""
    reached, accepted = Counter[int](), Counter[int]()
    for record in done:
        passes, shares = record["passes_by_depth"] or (), record["acceptance_by_depth"] or ()
        for depth, (count, share) in enumerate(zip(passes, shares, strict=True)):
            reached[depth] += count
            accepted[depth] += round(share * count)
    depths = range(len(reached))
    return (
        tuple(reached[depth] for depth in depths),
        tuple(accepted[depth] / reached[depth] for depth in depths),
    )


def _sources(done: Iterable[Record]) -> dict[str, float]:
    accepted = Counter[str]()
    for record in done:
        for name, counts in (record["sources"] or {}).items():
            accepted[name] += counts["accepted"]
    total = accepted.total()
    return {name: count / total for name, count in accepted.items() if count}


def _a_pass(done: Iterable[Record], amount: Callable[[Record], float | None]) -> float | None:
    """Of the records for which the amount is known."""
    known = [
        (found, record["passes"] or 0) for record in done if (found := amount(record)) is not None
    ]
    return ratio(sum(found for found, _ in known), sum(passes for _, passes in known))


def _draft_ms(record: Record) -> float | None:
    each = record["draft_ms_per_pass"]
    return None if each is None else each * (record["passes"] or 0)


def _prompt(record: Record) -> tuple[str, int]:
    return record["task"], record["turn"]


def _known(records: Iterable[Record], key: str) -> list[Any]:
    values = (cast(Mapping[str, Any], record)[key] for record in records)
    return [value for value in values if value is not None]


def _total(records: Iterable[Record], key: str) -> Any:
    return sum(_known(records, key))
