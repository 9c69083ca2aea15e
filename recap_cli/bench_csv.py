"""A benchmark's summary as CSV: a line for each contender, overall and in each category.

The columns are the same whatever the benchmark was. Computes no measure.
"""

import csv
from collections.abc import Iterable
from dataclasses import asdict, fields
from itertools import chain
from typing import TextIO

from engine.bench.speedups import Speedups, Spread
from engine.bench.summary import FirstDifference, Row, Summary
from engine.stats import SOURCES

_DEPTHS = 16

Cell = str | float | None


def write_csv(summary: Summary, stream: TextIO) -> None:
    """Write all rows, an empty cell for what is not known."""
    rows = chain(summary.overall, *summary.categories.values())
    lines = [_line(row) for row in rows]
    if lines:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _rounded(cell) for key, cell in line.items()} for line in lines)


def _line(row: Row) -> dict[str, Cell]:
    """`category` is empty overall; depths and sources are shares."""
    unknown = dict.fromkeys(field.name for field in fields(FirstDifference))
    difference = asdict(row.difference) if row.difference else unknown
    return {
        "contender": row.contender,
        "category": row.category,
        "error": row.failed,
        "prompts": row.prompts,
        "failed_prompts": len(row.failures),
        "compared": row.compared,
        "identical": row.identical,
        **{f"difference_{key}": value for key, value in difference.items()},
        "passes": row.passes,
        "mean_acceptance_length": row.mean_acceptance_length,
        "nodes_per_pass": row.nodes_per_pass,
        "ms_per_pass": row.ms_per_pass,
        "draft_ms_per_pass": row.draft_ms_per_pass,
        "decode_tokens_per_s": row.decode_tokens_per_s,
        "ttft_s": row.ttft_s,
        "peak_memory_bytes": row.peak_memory_bytes,
        "peak_gpu_memory_bytes": row.peak_gpu_memory_bytes,
        **_speedups("", row.plain),
        **_speedups("_over_generate", row.generate),
        **dict(_depths(row)),
        **{f"source_{name}": row.sources.get(name, 0.0) for name in SOURCES},
    }


def _rounded(cell: Cell) -> Cell:
    return round(cell, 6) if isinstance(cell, float) else cell


def _speedups(over: str, speedups: Speedups) -> dict[str, Cell]:
    return {
        **_spread(f"decode_speedup{over}", speedups.decode),
        **_spread(f"e2e_speedup{over}", speedups.e2e),
        f"total_speedup{over}": speedups.total,
    }


def _spread(name: str, spread: Spread | None) -> dict[str, Cell]:
    figures = (spread.median, spread.low, spread.high) if spread else (None, None, None)
    return dict(zip((name, f"{name}_q1", f"{name}_q3"), figures, strict=True))


def _depths(row: Row) -> Iterable[tuple[str, Cell]]:
    shares = [*row.acceptance_by_depth, *[None] * _DEPTHS]
    return ((f"acceptance_depth_{depth + 1}", shares[depth]) for depth in range(_DEPTHS))
