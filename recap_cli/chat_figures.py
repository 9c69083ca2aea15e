"""Tables of `recap chat`: its turns, pictures, context, memories and commands.

Computes no measure: a turn's are those of its exchange.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from engine.stats import DecodeStats
from recap_cli.figures import ASCII_BARS, BARS, shares, sparkline
from recap_cli.terminal import one_line

if TYPE_CHECKING:
    from engine.conversation import ContextUse
    from engine.session import MemoryUse
    from engine.transcript import Exchange

_WIDE = 60
"""Columns from which on a table of turns shows how much of the prompt was read, as the cache did
not hold it, and where accepted tokens came from."""
_BAR = 20


@dataclass(frozen=True, slots=True)
class PictureRow:
    """A picture: when it is read, its name, its size in pixels, and its tokens if they count."""

    when: str
    name: str
    size: tuple[int, int]
    tokens: int | None = None


def turns_table(exchanges: "Sequence[Exchange]", width: int, *, ascii_only: bool) -> Group:
    """A turn a row, and below the numbers a sparkline of MAT, from 1 upwards."""
    wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("turn", "tokens", "first", "tok/s", "MAT", *(("read",) if wide else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("accepted from", overflow="fold")
    for turn, exchange in enumerate(exchanges, start=1):
        table.add_row(str(turn), *_turn_cells(exchange)[: len(table.columns) - 1])
    mats = [_measures(exchange)["mean_acceptance_length"] for exchange in exchanges]
    bars = sparkline(mats, 1.0, ASCII_BARS if ascii_only else BARS)
    return Group(table, Text(f"MAT by turn  {bars}"))


def _turn_cells(exchange: "Exchange") -> list[str]:
    measures = _measures(exchange)
    accepted = {name: counts["accepted"] for name, counts in measures["sources"].items()}
    return [
        str(measures["new_tokens"]),
        f"{measures['ttft_s']:.2f} s",
        f"{measures['decode_tokens_per_s']:.1f}",
        f"{measures['mean_acceptance_length']:.2f}",
        f"{exchange.prompt_tokens - exchange.kept_tokens} of {exchange.prompt_tokens}",
        shares(accepted),
    ]


def _measures(exchange: "Exchange") -> dict[str, Any]:
    """An exchange's measures; those that its file does not have are zero."""
    return DecodeStats().measures() | dict(exchange.measures)


def pictures_table(rows: Iterable[PictureRow]) -> Table:
    """A picture a row."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for row in rows:
        width, height = row.size
        counted = "" if row.tokens is None else f"{row.tokens} tokens"
        table.add_row(row.when, one_line(row.name), f"{width} x {height}", counted)
    return table


def memory_rows(use: "MemoryUse") -> list[tuple[str, str]]:
    """What was learned, and where the part of it that stays is kept."""
    return [
        ("this conversation", f"{use.contextual_keys} keys of two and three tokens"),
        ("all conversations", f"{use.token_keys} keys of one token"),
        ("file", str(use.path or "none: they are forgotten at the end")),
    ]


def context_line(use: "ContextUse", queued: int, *, ascii_only: bool) -> str:
    """How full the context is; `queued` tokens of pictures wait for the next message."""
    waiting = f", {queued} more for queued pictures" if queued else ""
    if use.context_length is None:
        return f"{use.used} tokens{waiting}; the model's limit is not known"
    share = use.used / use.context_length
    full, empty = "#." if ascii_only else "█░"
    bar = full * round(_BAR * min(share, 1))
    return f"{bar:{empty}<{_BAR}} {use.used} of {use.context_length} tokens ({share:.0%}){waiting}"


def named(rows: Iterable[tuple[str, str]]) -> Table:
    """Names, and what is said about them."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, about in rows:
        table.add_row(name, one_line(about))
    return table
