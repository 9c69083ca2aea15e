"""A benchmark's document as people and programs read it; `recap bench report` makes it anew.

Brings together what `bench_tables` and `bench_csv` make of it. Needs no model, and imports little
before something is written: the flags here are those of every benchmark.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from engine.errors import UsageError
from recap_cli.grids import draw, markdown
from recap_cli.options import OUTPUT

if TYPE_CHECKING:
    from engine.bench.document import Document


class Format(StrEnum):
    """What a benchmark's results are written as."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"


FormatFlag = Annotated[
    Format,
    typer.Option(
        "--format",
        help="table or md to read; json is everything, jsonl its records, csv its summary.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFlag = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write there, not to standard output.",
        rich_help_panel=OUTPUT,
    ),
]
PlotFlag = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.png",
        help=r"Draw four charts too (needs pip install 'recap-vlm\[plot]').",
        rich_help_panel=OUTPUT,
    ),
]


def report(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What recap bench --format json wrote.")
    ],
    format: FormatFlag = Format.TABLE,
    output: OutputFlag = None,
    plot: PlotFlag = None,
) -> None:
    """Make tables and charts anew from a benchmark's JSON document."""
    from engine.bench.document import read_document  # noqa: PLC0415
    from recap_cli import bench_plot  # noqa: PLC0415

    check_output(output)
    if plot is not None:
        bench_plot.check(plot)
    document = read_document(file)
    if output is not None and output.exists() and output.samefile(file):
        raise UsageError(f"{output} is what is read; name another file for the results")
    publish(document, format, output)
    if plot is not None:
        bench_plot.plot(document, plot)


def check_output(output: Path | None) -> None:
    """Whether results could be written there; to be asked before a long run.

    Raises:
        UsageError: they could not.
    """
    if output is not None and output.is_dir():
        raise UsageError(f"{output} is a folder; name a file")
    if output is not None and not output.absolute().parent.is_dir():
        raise UsageError(f"{output}: there is no such folder")


@contextmanager
def destination(output: Path | None) -> Iterator[TextIO]:
    """Where results go: a file, or standard output.

    Raises:
        UsageError: the file cannot be written.
    """
    if output is None:
        yield sys.stdout
        return
    try:
        with output.open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error


def publish(document: "Document", format: Format, output: Path | None) -> None:
    """Write a document to a file, or to standard output.

    Raises:
        UsageError: the file cannot be written.
    """
    with destination(output) as stream:
        write(document, format, stream)


def write(document: "Document", format: Format, stream: TextIO) -> None:
    """Write a document in one of the formats."""
    from engine.bench.document import to_json, to_jsonl  # noqa: PLC0415
    from engine.bench.summary import summarise  # noqa: PLC0415
    from recap_cli.bench_csv import write_csv  # noqa: PLC0415
    from recap_cli.bench_tables import tables  # noqa: PLC0415

    match format:
        case Format.TABLE:
            draw(tables(document), stream)
        case Format.MD:
            stream.write(markdown(tables(document)))
        case Format.CSV:
            write_csv(summarise(document), stream)
        case Format.JSON:
            stream.write(to_json(document).decode())
        case Format.JSONL:
            stream.write(to_jsonl(document).decode())
