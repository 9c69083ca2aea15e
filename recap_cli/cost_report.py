"""What a pass costs, as people and programs read it. Chooses columns and words only."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import orjson

from recap_cli.bench_report import Format, destination
from recap_cli.grids import NOTHING, Grid, Report, draw, markdown

if TYPE_CHECKING:
    from engine.bench.cost import CostPoint
    from engine.bench.document import Machine
    from engine.bench.payoff import Payoff

FORMAT = 1
"""Version of the JSON document."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured where; the JSON document has these keys, and `kind` and `format`.

    Attributes:
        model: its name, or that of the config of which it was made with `random_weights`.
        compiled, operators: whether passes were, or used operators in C++ uncompiled.
        parameters: how many it has, its vision tower's included, which no pass reads.
        started: ISO 8601.
        repeats: passes of each size that were wanted; points say how many there are.
        finished: whether all were measured.
        points: by context and size; at least one.
        payoffs: by context, acceptance and shape.
    """

    model: str
    random_weights: bool
    compiled: bool
    operators: bool
    parameters: int
    device: str
    dtype: str
    machine: "Machine"
    versions: dict[str, str | None]
    started: str
    repeats: int
    finished: bool
    points: "Sequence[CostPoint]"
    payoffs: "Sequence[Payoff]"


def publish(found: Measurement, format: Format, output: Path | None) -> None:
    """Write to a file, or to standard output.

    Raises:
        UsageError: the file cannot be written.
    """
    with destination(output) as stream:
        write(found, format, stream)


def write(found: Measurement, format: Format, stream: TextIO) -> None:
    """Write in one of the formats; csv and jsonl have the points, json has everything."""
    match format:
        case Format.TABLE:
            draw(_report(found), stream)
        case Format.MD:
            stream.write(markdown(_report(found)))
        case Format.CSV:
            lines = [asdict(point) for point in found.points]
            writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        case Format.JSONL:
            stream.writelines(orjson.dumps(point).decode() + "\n" for point in found.points)
        case Format.JSON:
            document = {"kind": "cost", "format": FORMAT, **asdict(found)}
            stream.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def _report(found: Measurement) -> Report:
    contexts = groupby(found.points, lambda point: point.context)
    costs = [_costs(context, points) for context, points in contexts]
    return Report((*costs, _payoffs(found.payoffs)), _circumstances(found))


def _costs(context: int, points: "Iterable[CostPoint]") -> Grid:
    return Grid(
        f"Passes behind {context} tokens",
        ("tokens", "ms", "quartiles", "ratio", "one more"),
        tuple(
            (
                str(point.tokens),
                f"{point.ms:.2f}",
                f"{point.ms_q1:.2f}-{point.ms_q3:.2f}",
                f"{point.ratio:.2f}x",
                NOTHING if point.marginal is None else f"{point.marginal:.3f}",
            )
            for point in points
        ),
    )


def _payoffs(payoffs: "Sequence[Payoff]") -> Grid:
    """A line for each context and acceptance; chain and tree beside one another."""
    lines = groupby(payoffs, lambda payoff: (payoff.context, payoff.acceptance))
    return Grid(
        "The size that pays most, and what it gives",
        ("behind", "accepted", "chain", "commits", "speed-up", "tree", "commits", "speed-up"),
        tuple(
            (
                f"{context} tokens",
                f"{acceptance:g}",
                *(cell for one in both for cell in _cells(one)),
            )
            for (context, acceptance), both in lines
        ),
        (
            "One more is the time of each token beyond the size in the line above, in passes of"
            " one token. A guess pays if it comes true more often than that times the speed-up"
            " that the smaller pass has.",
            "Accepted is the probability a that the best guess is. A chain of n tokens commits"
            " 1 + a + a^2 + ... + a^(n-1); in a tree the r-th best guess is accepted with"
            " a (1-a)^(r-1), and the likeliest n-1 paths are taken. Drafting is taken to be free."
            " Larger passes than these no longer pay; + is the largest measured, beyond which one"
            " may.",
        ),
    )


def _cells(payoff: "Payoff") -> tuple[str, str, str]:
    size = f"{payoff.tokens}{'+' if payoff.largest else ''}"
    return size, f"{payoff.committed:.2f}", f"{payoff.speedup:.2f}x"


def _circumstances(found: Measurement) -> str:
    machine = found.machine
    passes = [point.passes for point in found.points]
    fewest = f"{min(passes)} to " if min(passes) < max(passes) else ""
    weights = "random weights of " if found.random_weights else ""
    groups: list[Sequence[str]] = [
        () if found.finished else ("unfinished",),
        (f"{weights}{found.model}", f"{found.parameters / 1e6:.0f} M parameters"),
        (
            f"{found.dtype} on {found.device}",
            *(("compiled",) if found.compiled else ()),
            *(("with operators in C++",) if found.operators else ()),
        ),
        (f"medians of {fewest}{max(passes)} passes",),
        (
            *((machine["gpu"],) if machine["gpu"] else ()),
            machine["cpu"],
            f"{machine['threads']} of {machine['cores']} cores",
            machine["platform"],
        ),
        tuple(f"{name} {version}" for name, version in found.versions.items() if version),
        (f"{datetime.fromisoformat(found.started):%Y-%m-%d}",),
    ]
    return "; ".join(", ".join(group) for group in groups if group)
