"""`recap bench cost`: what a pass costs on this machine by its size, and which size pays."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby, product
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from engine.errors import UsageError
from recap_cli import options, sessions
from recap_cli.bench_report import Format, FormatFlag, OutputFlag, check_output
from recap_cli.cost_report import Measurement, publish
from recap_cli.records import versions
from recap_cli.signals import Interrupts
from recap_cli.terminal import error_console, one_line

if TYPE_CHECKING:
    from engine.bench.cost import CostOptions, CostPoint, PassTime, Subject

MEASURING = "Measuring"
"""A section of the help."""

T = TypeVar("T", int, float)


def cost(
    context: typer.Context,
    model: options.ModelFlag = options.DEMO_MODEL,
    random_weights: Annotated[
        str | None,
        typer.Option(
            "--random-weights",
            metavar="CONFIG",
            help="Make a model of this config.json, id or short name with random weights instead: "
            "as slow as the real one, and nothing but its config is downloaded.",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    device: options.DeviceFlag = options.Device.AUTO,
    dtype: options.DTypeFlag = options.DType.AUTO,
    compile: options.CompileFlag = False,
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes",
            metavar="NUMBERS",
            help="Tokens in a pass: the last one committed, and guesses. 1 is always among them.",
            rich_help_panel=MEASURING,
        ),
    ] = "1,2,4,8,12,16,24,32,48,64,96,128",
    contexts: Annotated[
        str,
        typer.Option(
            "--contexts",
            metavar="NUMBERS",
            help="Tokens in the cache before them.",
            rich_help_panel=MEASURING,
        ),
    ] = "512,2048",
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            metavar="N",
            min=2,
            help="Time each pass N times.",
            rich_help_panel=MEASURING,
        ),
    ] = 20,
    acceptance: Annotated[
        str,
        typer.Option(
            "--acceptance",
            metavar="SHARES",
            help="How often the best guess comes true; which size pays depends on it.",
            rich_help_panel=MEASURING,
        ),
    ] = "0.3,0.5,0.7,0.9",
    format: FormatFlag = Format.TABLE,
    output: OutputFlag = None,
) -> None:
    """Time passes by their tokens, and say which size pays.

    Random tokens stand for the context and the guesses.

    recap bench cost -m MODEL

    recap bench cost --random-weights qwen2.5-vl-7b --device cuda --dtype bfloat16
    """
    if random_weights is not None and options.is_typed(context, "model"):
        raise UsageError("-m and --random-weights exclude each other")
    check_output(output)
    shares = _shares(acceptance)
    sessions.import_libraries()
    from engine.bench.cost import CostOptions, cost_points  # noqa: PLC0415

    wanted = CostOptions(
        _numbers("--sizes", sizes, int), _numbers("--contexts", contexts, int), repeats
    )
    made = random_weights is not None
    name = random_weights or model
    _say(f"{'making' if made else 'loading'}{' and compiling' if compile else ''} {name} ...")
    subject = sessions.cost_subject(
        model=name,
        device=device,
        dtype=dtype,
        random_weights=made,
        compile=compile,
        say=_say,
        progress=error_console().is_terminal,
    )
    measured = wanted.within(subject.context_length)
    if measured != wanted:
        length = subject.context_length
        _say(f"note: contexts are cut to what the model attends to, {length} tokens")
    times: list[PassTime] = []
    started = datetime.now(UTC)
    try:
        with Interrupts():
            _measure(subject, measured, times)
    finally:  # interrupted or out of memory: what is finished is shown
        if points := cost_points(times):
            found = _measurement(
                subject,
                points,
                shares,
                started,
                repeats=repeats,
                finished=len(times) == measured.passes,
                random_weights=made,
                compiled=compile,
            )
            publish(found, format, output)


def _measure(subject: "Subject", wanted: "CostOptions", times: "list[PassTime]") -> None:
    """Fill `times`, with a bar on a terminal; drawn between passes, not beside them."""
    from engine.bench.cost import time_passes  # noqa: PLC0415

    console = error_console()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal or console.is_dumb_terminal,
    )
    with progress:
        bar = progress.add_task("filling the context", total=wanted.passes)
        for time in time_passes(subject, wanted):
            times.append(time)
            progress.update(bar, advance=1, description=f"behind {time.context} tokens")
            if len(times) % len(wanted.sizes) == 0:
                progress.refresh()


def _measurement(
    subject: "Subject",
    points: "Sequence[CostPoint]",
    shares: Sequence[float],
    started: datetime,
    *,
    repeats: int,
    finished: bool,
    random_weights: bool,
    compiled: bool,
) -> Measurement:
    from engine.bench.machine import machine  # noqa: PLC0415
    from engine.bench.payoff import SHAPES, payoff  # noqa: PLC0415
    from engine.packing import parameter_count  # noqa: PLC0415

    model = subject.target.model
    by_context = [list(group) for _, group in groupby(points, lambda point: point.context)]
    return Measurement(
        model=subject.name,
        random_weights=random_weights,
        compiled=compiled,
        operators=subject.target.form == "operators",
        parameters=parameter_count(model),
        device=str(subject.target.device),
        dtype=str(model.dtype).removeprefix("torch."),
        machine=machine(subject.target.device),
        versions=versions(),
        started=started.isoformat(timespec="seconds"),
        repeats=repeats,
        finished=finished,
        points=points,
        payoffs=[
            payoff(group, share, shape)
            for group, share, shape in product(by_context, shares, SHAPES)
        ],
    )


def _numbers(flag: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """Of a list with commas."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{flag} takes numbers with commas between them, not {text!r}") from error


def _shares(text: str) -> tuple[float, ...]:
    shares = _numbers("--acceptance", text, float)
    if not all(0 < share < 1 for share in shares):
        raise UsageError(f"--acceptance takes shares between 0 and 1, not {text!r}")
    return shares


def _say(message: str) -> None:
    error_console().print(f"recap: {one_line(message)}", soft_wrap=True)
