"""How many times as fast one contender is as another, from pairs of their records.

A pair is the same prompt in the same repetition: contenders take turns prompt by prompt, so the two
ran shortly after one another and a machine that slows down slows both. Records that failed must
have been taken out before.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from engine.bench.document import Record


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of `count` ratios."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Speedups:
    """How many times as fast as a baseline; None where no pair of records tells.

    `decode` and `e2e` are medians over prompts and repetitions of the ratio of the baseline's time
    per token to the contender's.

    Attributes:
        decode: time in passes, drafting and learning included, prefill excluded.
        e2e: time of whole requests: pictures, prefill, seeding and memory included.
        total: the baseline's time for all whole requests that both finished / the contender's. Not
            per token, so it depends on the lengths of answers where these differ.
    """

    decode: Spread | None
    e2e: Spread | None
    total: float | None


def speedups(mine: Iterable[Record], baseline: Iterable[Record]) -> Speedups:
    """Of a contender against a baseline, over what both finished."""
    theirs = {run(record): record for record in baseline}
    pairs = [(theirs[run(record)], record) for record in mine if run(record) in theirs]
    return Speedups(
        decode=_spread(pairs, _decode_s_per_token),
        e2e=_spread(pairs, _s_per_token),
        total=ratio(sum(_total_s(b) for b, _ in pairs), sum(_total_s(r) for _, r in pairs)),
    )


def run(record: Record) -> tuple[str, int, int]:
    """What the records of a pair share: task, turn and repetition."""
    return record["task"], record["turn"], record["repetition"]


def decoded(record: Record) -> int:
    """Tokens that passes committed, those that the prefill brought left out."""
    return sum(record["committed"] or ())


def ratio(numerator: float, denominator: float) -> float | None:
    """None where there is nothing to divide by."""
    return numerator / denominator if denominator else None


def _spread(
    pairs: Sequence[tuple[Record, Record]], cost: Callable[[Record], float | None]
) -> Spread | None:
    """Of the ratios of the baseline's cost to the contender's, where both have one."""
    costs = ((cost(baseline), cost(record)) for baseline, record in pairs)
    ratios = [theirs / mine for theirs, mine in costs if theirs and mine]
    if not ratios:
        return None
    low, middle, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else 3 * ratios
    return Spread(middle, low, high, len(ratios))


def _decode_s_per_token(record: Record) -> float | None:
    return ratio(record["decode_s"] or 0.0, decoded(record))


def _s_per_token(record: Record) -> float | None:
    return ratio(_total_s(record), record["new_tokens"] or 0)


def _total_s(record: Record) -> float:
    return record["total_s"] or 0.0
