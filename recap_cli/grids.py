"""Tables of text, and how they are drawn: on a terminal, in a pipe or in Markdown.

What stands in them is for others to say.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from recap_cli.terminal import one_line

NOTHING = "-"
"""A cell for which there is no figure."""

_GAP = 2
_LONGEST_LINE = 100
"""Columns for text that is wrapped, on wider terminals."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its first column says what a row is about, the others hold figures.

    Attributes:
        title: what it is about, in a line.
        columns: their heads.
        rows: a cell for each column.
        notes: what the figures do not say themselves, a line each.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Tables that belong together, and what was measured where, in a line."""

    grids: tuple[Grid, ...]
    circumstances: str


def draw(report: Report, stream: TextIO) -> None:
    """Write a report for reading; one that is no terminal gets no escapes."""
    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    width = min(console.width, _LONGEST_LINE)
    for grid in report.grids:
        console.print(Text(one_line(grid.title), "bold"), width=width)
        for block in _blocks(grid, console.width):
            console.print(block)
        for note in grid.notes:
            console.print(Text(one_line(note), "dim"), width=width)
        console.print()
    console.print(Text(one_line(report.circumstances), "dim"), width=width)


def markdown(report: Report) -> str:
    """A report for pasting into a README."""
    lines: list[str] = []
    for grid in report.grids:
        lines += [f"**{_escaped(grid.title)}**", "", _markdown_row(grid.columns)]
        lines += ["|".join(["", "---", *["--:"] * (len(grid.columns) - 1), ""])]
        lines += [_markdown_row(row) for row in grid.rows]
        lines += ["", *(line for note in grid.notes for line in (_escaped(note), ""))]
    return "\n".join([*lines, _escaped(report.circumstances), ""])


def _blocks(grid: Grid, width: int) -> Iterator[Table]:
    """The grid as one table or, where that would be too wide, several below one another."""
    columns = zip(grid.columns, *grid.rows, strict=True)
    names, *figures = [tuple(map(one_line, column)) for column in columns]
    block = [names]
    for column in figures:
        if len(block) > 1 and sum(_GAP + _width(each) for each in (*block, column)) > width + _GAP:
            yield _table(block)
            block = [names]
        block.append(column)
    yield _table(block)


def _width(column: Sequence[str]) -> int:
    """Of the widest cell, or of a head whose words stand below one another."""
    head, *cells = column
    return max(map(cell_len, (*head.split(), *cells)), default=0)


def _table(columns: Sequence[Sequence[str]]) -> Table:
    # This box parts columns by one space, to which the padding adds the rest of the gap.
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="dim",
    )
    for number, column in enumerate(columns):
        justify: JustifyMethod = "right" if number else "left"
        table.add_column(column[0], justify=justify, vertical="bottom", width=_width(column))
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*row)
    return table


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """`text` as Markdown that shows it as it is."""
    return re.sub(r"[\\`*<|]", r"\\\g<0>", one_line(text))
