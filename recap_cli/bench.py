"""`recap bench`: every method on the same prompts, and what a pass costs here."""

from pathlib import Path
from typing import Annotated

import typer

from engine.errors import UsageError
from recap_cli import options
from recap_cli.bench_cost import cost
from recap_cli.bench_report import Format, FormatFlag, OutputFlag, PlotFlag, report
from recap_cli.bench_work import Turns, Work

PROTOCOL = "Protocol"
"""A section of the help."""

app = typer.Typer(
    help="Measure every method on the same prompts: speed, and whether the answers are the same.",
    invoke_without_command=True,
)
app.command(name="report")(report)
app.command(name="cost")(cost)


@app.callback()
def bench(
    context: typer.Context,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE.jsonl",
            help="Ask what is in this file: an object a line with turns or question, image, id.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="FOLDER",
            help="Ask --prompt about each picture in this folder.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="What to ask about --images.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    set: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="NAME",
            help="Ask 100 prompts of a vision set: scienceqa, mmvet, textvqa, mme, coco, vizwiz, "
            "gqa, seedbench or mmspec.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    set_folder: Annotated[
        Path | None,
        typer.Option(
            "--set-folder",
            metavar="FOLDER",
            help="Where the files of --set are, laid out as on the Hub; else they are downloaded.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Ask the first N only.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    turns: Annotated[
        Turns,
        typer.Option(
            "--turns",
            help="Of conversations: every turn, or the first alone.",
            rich_help_panel=options.INPUT,
        ),
    ] = Turns.ALL,
    model: options.ModelFlag = options.DEMO_MODEL,
    device: options.DeviceFlag = options.Device.AUTO,
    device_map: options.DeviceMapFlag = None,
    dtype: options.DTypeFlag = options.DType.AUTO,
    compile: options.CompileFlag = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            metavar="N",
            min=1,
            help="Longest answer, in tokens.",
            show_default="128; of a set 1024",
            rich_help_panel=options.DECODING,
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="NAMES",
            help="Who takes part beside plain and transformers: recap,racer:32,recap:16:no-suffix; "
            "default is all methods at their published sizes, ablations is recap without a part.",
            rich_help_panel=PROTOCOL,
        ),
    ] = "default",
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="SIZES",
            help="Also run each of them with so many draft tokens a pass: 4,8,16.",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    repetitions: Annotated[
        int,
        typer.Option(
            "--repetitions",
            metavar="N",
            min=1,
            help="Ask everything N times.",
            rich_help_panel=PROTOCOL,
        ),
    ] = 1,
    memory_start: Annotated[
        str,
        typer.Option(
            "--memory-start",
            metavar="cold|warm|FILE",
            help="What methods know when a repetition begins: cold is nothing, warm what a pass "
            "over the same prompts taught, FILE what a token memory holds; none is written.",
            rich_help_panel=PROTOCOL,
        ),
    ] = "cold",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with an interrupted run that had the same flags and -o FILE.",
            rich_help_panel=PROTOCOL,
        ),
    ] = False,
    format: FormatFlag = Format.TABLE,
    output: OutputFlag = None,
    plot: PlotFlag = None,
) -> None:
    """Measure every method on the same prompts: speed, and whether the answers are the same.

    Without prompts, it asks about scenes that the demo model knows. Ctrl-C finishes the request in
    hand; with -o FILE a run can be resumed.

    recap bench --methods recap,racer -m MODEL --prompts prompts.jsonl --limit 20

    recap bench -m MODEL --images photos/ --prompt "Describe it." --format json -o photos.json
    """
    if context.invoked_subcommand is not None:
        _refuse_flags(context, context.invoked_subcommand)
        return
    from recap_cli.bench_run import Job, run  # noqa: PLC0415

    work = Work(prompts, images, prompt, set, set_folder, limit, turns)
    run(
        Job(
            work=work,
            model=model,
            device=device,
            device_map=device_map,
            dtype=dtype,
            compile=compile,
            max_tokens=max_tokens or work.max_tokens,
            methods=_listed("--methods", methods),
            sizes=_sizes(nodes) if nodes is not None else [],
            repetitions=repetitions,
            memory_start=memory_start,
            resume=resume,
            format=format,
            output=output,
            plot=plot,
        )
    )


def _refuse_flags(context: typer.Context, command: str) -> None:
    """Raises UsageError for a flag in front of a command, which would not see it."""
    typed = next((name for name in context.params if options.is_typed(context, name)), None)
    if typed is not None:
        flag = typed.replace("_", "-")
        raise UsageError(f"--{flag} in front of {command} is not for it; flags go behind {command}")


def _listed(flag: str, text: str) -> list[str]:
    """Raises UsageError where nothing is listed."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise UsageError(f"{flag} lists nothing; name some, or leave it out")
    return items


def _sizes(text: str) -> list[int]:
    """Raises UsageError where it is not a list of sizes."""
    try:
        sizes = [int(item) for item in _listed("--nodes", text)]
    except ValueError as error:
        raise UsageError(f"--nodes {text}: give sizes, such as 4,8,16") from error
    return sizes
