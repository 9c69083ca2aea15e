"""Measures as text for people: the live line, an answer's summary, bars and sparklines.

Computes no measure (see `engine.stats`), and draws nothing itself.
"""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from engine.events import Encoded, Finished
from engine.stats import DecodeStats

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = ".:-=+*#@"
_NOTHING = "nothing accepted"


def prompt_counts(event: Encoded | Finished) -> str:
    """How long the prompt is, in words."""
    images = f" ({event.image_tokens} image)" if event.image_tokens else ""
    return f"{event.prompt_tokens} prompt tokens{images}"


def progress(stats: DecodeStats) -> Text:
    """The live line: most important figures first, since a narrow terminal cuts it."""
    return _dim_line(f"{stats.new_tokens} tokens", *_pace(stats))


def brief(event: Finished) -> Text:
    """An answer's figures on one line, in the order of `progress`."""
    ending = "" if event.finish_reason == "stop" else f" ({event.finish_reason})"
    tokens, first = f"{event.stats.new_tokens} tokens{ending}", f"first {event.stats.ttft_s:.2f} s"
    speed, *drafting = _pace(event.stats)
    return _dim_line(tokens, speed, *drafting[:1], first, *drafting[1:])


def summary(event: Finished, *, ascii_only: bool = False) -> Table:
    """The figures of a whole request, one kind a line."""
    stats = event.stats
    speed = f", then {stats.decode_tokens_per_s:.1f} tokens/s" if stats.passes else ""
    rows = {
        "tokens": f"{stats.new_tokens} ({event.finish_reason}) after {prompt_counts(event)}",
        "time": f"first token {stats.ttft_s:.2f} s{speed}",
    }
    if stats.drafted:
        drafts = f"{stats.accepted} of {stats.drafted} drafted"
        rows["accepted"] = f"{drafts}, MAT {stats.mean_acceptance_length:.2f}"
        rows["sources"] = _sources(stats)
        rows["tokens/pass"] = histogram(stats, ASCII_BARS if ascii_only else BARS)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, figures in rows.items():
        table.add_row(label, figures)
    return table


def histogram(stats: DecodeStats, bars: str = BARS) -> str:
    """Passes by tokens committed: tokens, a bar relative to the highest, passes."""
    counts = sorted(stats.acceptance_histogram.items())
    most = max((passes for _, passes in counts), default=1)
    top = len(bars) - 1
    return "  ".join(f"{length} {bars[round(top * n / most)]} {n}" for length, n in counts)


def sparkline(values: Sequence[float], low: float, bars: str = BARS) -> str:
    """A bar a value, from `low`, the lowest bar, to the highest value."""
    span = max(values, default=low) - low
    top = len(bars) - 1
    heights = (max(value - low, 0) / span if span > 0 else 0 for value in values)
    return "".join(bars[round(top * height)] for height in heights)


def shares(accepted: Mapping[str, int]) -> str:
    """Which share of the accepted draft tokens came from which source, the most first."""
    whole = sum(accepted.values())
    return "  ".join(f"{name} {count / whole:.0%}" for name, count in _ranked(accepted)) or _NOTHING


def _dim_line(*figures: str) -> Text:
    return Text("  ".join(figures), "dim")


def _pace(stats: DecodeStats) -> list[str]:
    """How fast, and thanks to what."""
    speed = f"{stats.decode_tokens_per_s:.1f} tok/s"
    if not stats.drafted:
        return [speed]
    return [
        speed,
        f"MAT {stats.mean_acceptance_length:.2f}",
        f"tree {stats.tree_size:.1f}",
        shares(stats.source_accepted),
    ]


def _sources(stats: DecodeStats) -> str:
    """Where the accepted draft tokens came from, the most first."""
    ranked = _ranked(stats.source_accepted)
    return "  ".join(f"{name} {count}" for name, count in ranked) or _NOTHING


def _ranked(accepted: Mapping[str, int]) -> list[tuple[str, int]]:
    used = sorted(accepted.items(), key=lambda item: -item[1])
    return [(name, count) for name, count in used if count]
