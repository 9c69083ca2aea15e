"""Four charts of a benchmark in one picture; needs matplotlib, which is an extra.

Draws; computes no measure (see `engine.bench.summary`).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

from engine.bench.document import CONTROL, PLAIN, Document, Record
from engine.bench.summary import Row, Summary, finished, summarise
from engine.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _DPI = 13, 130
_SUFFIXES = (".png", ".svg", ".pdf")
# Told apart with any kind of colour vision (Okabe and Ito); without their yellow, pale on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^v<>PX"
_LINES = ("-", "--", ":", "-.")
_BAR, _FAINT, _NOISE = "#0072B2", "#888888", "#E69F00"

_Style = tuple[str, str, str]
"""Colour, marker and line of a contender."""


def check(path: Path) -> None:
    """Whether a picture could be drawn there; to be asked before a long run.

    Raises:
        UsageError: matplotlib is missing, or the file cannot be one.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("charts need matplotlib: pip install 'recap-vlm[plot]'")
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{path}: charts are written as {', '.join(_SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no such folder")


def plot(document: Document, path: Path) -> None:
    """Draw the charts into a file whose suffix says of what kind.

    Raises:
        UsageError: see `check`; or the file cannot be written.
    """
    check(path)
    try:
        draw(document).savefig(path, dpi=_DPI)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def draw(document: Document) -> "Figure":
    """Speed-up, MAT by category, acceptance by depth, and time of a pass by tree size."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    summary = summarise(document)
    rows = summary.overall
    drafting = [row for row in rows if row.passes_by_depth]
    styles = _styles(rows)
    heights = (1.6 + 0.26 * len(rows), 4.4)
    legend = 1.0 + 0.07 * len(drafting)
    figure = Figure(figsize=(_WIDTH, sum(heights) + legend), layout="constrained")
    axes = figure.subplots(2, 2, height_ratios=heights)
    _speedups(axes[0, 0], rows)
    _categories(axes[0, 1], summary)
    _depths(axes[1, 0], drafting, styles)
    _cost(axes[1, 1], finished(document["records"]), rows, styles)
    if any(row.nodes_per_pass is not None for row in rows):
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle(_title(document), fontsize=10)
    return figure


def _title(document: Document) -> str:
    settings, machine = document["settings"], document["machine"]
    where = machine["gpu"] or machine["cpu"]
    return f"{settings['model']}, {settings['dtype']}; {settings['workload']}; {where}"


def _styles(rows: Sequence[Row]) -> dict[str, _Style]:
    return {
        row.contender: (
            _COLOURS[i % len(_COLOURS)],
            _MARKERS[i % len(_MARKERS)],
            _LINES[i // len(_MARKERS) % len(_LINES)],
        )
        for i, row in enumerate(rows)
    }


def _speedups(axes: "Axes", rows: Sequence[Row]) -> None:
    """A bar a contender with its quartiles, and what is noise, around 1."""
    timed = [(row.contender, row.plain.decode) for row in rows if row.plain.decode]
    for place, (name, spread) in enumerate(timed):
        middle = spread.median
        reach = [[middle - spread.low], [spread.high - middle]]
        colour = _FAINT if name in (PLAIN, CONTROL) else _BAR
        axes.barh(place, middle, color=colour, xerr=reach, ecolor="#333333", capsize=2, height=0.7)
    noise = dict(timed).get(CONTROL)
    if noise is not None:
        axes.axvspan(noise.low, noise.high, color=_NOISE, alpha=0.5, lw=0, zorder=2)
    axes.axvline(1, color="black", lw=0.8)
    labels = [f"{name}  {spread.median:.2f}x" for name, spread in timed]
    axes.set_yticks(range(len(timed)), labels)
    axes.invert_yaxis()
    band = f"; band: {CONTROL}" if noise else ""
    axes.set_title(f"Decode speed-up (median, quartiles{band})")


def _categories(axes: "Axes", summary: Summary) -> None:
    """A cell for each category, and each contender that commits more than a token a pass."""
    names = [row.contender for row in summary.overall if (row.mean_acceptance_length or 0) > 1]
    columns = [
        [row.mean_acceptance_length or nan for row in rows if row.contender in names]
        for rows in summary.categories.values()
    ]
    cells = list(zip(*columns, strict=True))
    if not cells:
        axes.set_axis_off()
        return
    # Half of the colours only: black is readable on all of them.
    most = max((mat for row in cells for mat in row if not isnan(mat)), default=1.0)
    axes.imshow(cells, cmap="Blues", aspect="auto", vmin=1, vmax=2 * most - 1)
    for y, row in enumerate(cells):
        for x, mat in enumerate(row):
            text = "-" if isnan(mat) else f"{mat:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    labels = [name.replace("_", " ") for name in summary.categories]
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_title("MAT by category")


def _depths(axes: "Axes", rows: Sequence[Row], styles: dict[str, _Style]) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    for row in rows:
        shares = row.usual_acceptance_by_depth
        colour, marker, line = styles[row.contender]
        depths = range(1, len(shares) + 1)
        axes.plot(depths, shares, line, color=colour, marker=marker, ms=5, label=row.contender)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.set_xlabel("depth in the tree")
    axes.set_title("Accepted, of the passes whose tree got there")


def _cost(
    axes: "Axes", records: Sequence[Record], rows: Sequence[Row], styles: dict[str, _Style]
) -> None:
    """A faint point a request, a full one a contender."""
    for row in rows:
        if row.nodes_per_pass is None or row.ms_per_pass is None:
            continue
        colour, marker, _ = styles[row.contender]
        mine = [record for record in records if record["contender"] == row.contender]
        nodes = [(r["drafted_tokens"] or 0) / (r["passes"] or 1) for r in mine]
        times = [r["ms_per_pass"] or nan for r in mine]  # an answer of one token has none
        axes.scatter(nodes, times, s=8, color=colour, alpha=0.25, lw=0)
        axes.scatter(
            row.nodes_per_pass,
            row.ms_per_pass,
            s=60,
            color=colour,
            marker=marker,
            edgecolor="white",
            lw=0.6,
            zorder=3,
            label=None if row.passes_by_depth else row.contender,
        )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_xlabel("draft tokens a pass")
    axes.set_ylabel("ms")
    axes.set_title("Time of a pass by tree size (requests, and their mean)")
