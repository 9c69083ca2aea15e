"""`recap generate`: one prompt, any number of pictures, one answer."""

from functools import partial
from typing import Annotated

import typer

from recap_cli import options, sessions
from recap_cli.models import print_models


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="What to ask; - or nothing reads standard input.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Read the prompt from a file.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    image: options.ImageFlag = None,
    background: options.BackgroundFlag = options.BACKGROUND,
    max_image_pixels: options.MaxImagePixelsFlag = options.MAX_IMAGE_PIXELS,
    max_pixels: options.MaxPixelsFlag = None,
    min_pixels: options.MinPixelsFlag = None,
    template: options.TemplateFlag = False,
    system: options.SystemFlag = None,
    model: options.ModelFlag = options.DEMO_MODEL,
    list_models: options.ListModelsFlag = False,
    device: options.DeviceFlag = options.Device.AUTO,
    device_map: options.DeviceMapFlag = None,
    dtype: options.DTypeFlag = options.DType.AUTO,
    compile: options.CompileFlag = False,
    max_tokens: options.MaxTokensFlag = None,
    stop: options.StopFlag = None,
    method: options.MethodFlag = options.Method.RECAP,
    nodes: options.NodesFlag = None,
    memory: options.MemoryFlag = None,
    no_memory: options.NoMemoryFlag = False,
    json: options.JsonFlag = False,
    dry_run: options.DryRunFlag = False,
    no_stream: Annotated[
        bool,
        typer.Option(
            "--no-stream",
            help="Write the answer when it is whole.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    stats: Annotated[
        bool | None,
        typer.Option(
            "--stats/--no-stats",
            help="Figures on stderr at the end; if neither is given, on a terminal only.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    quiet: options.QuietFlag = False,
) -> None:
    """Ask one question, with or without pictures.

    The answer goes to standard output as it is decoded, everything else to standard error.

    recap generate -i photo.jpg "What is this?"

    recap generate -s "Summarise this." < notes.txt
    """
    if list_models:
        print_models(json=json)
        return
    from engine.images import ImageOptions  # noqa: PLC0415
    from engine.sizes import PixelLimits  # noqa: PLC0415
    from recap_cli.answer import Question, answer  # noqa: PLC0415
    from recap_cli.render import View  # noqa: PLC0415

    open_session = partial(
        sessions.open_session,
        model=model,
        device=device,
        device_map=device_map,
        dtype=dtype,
        compile=compile,
        method=method,
        memory=not no_memory,
        memory_file=options.memory_path(memory, no_memory),
        drafter=options.drafter_options(nodes),
    )
    question = Question(
        model=model,
        method=method,
        prompt=prompt,
        file=file,
        images=image or [],
        image_options=ImageOptions(background=background, max_pixels=max_image_pixels),
        system=system,
        max_tokens=max_tokens,
        stop=stop or (),
        pixels=PixelLimits(min_pixels, max_pixels),
        template=template,
    )
    # With --json the figures are in the object.
    shown = False if json and stats is None else stats
    view = View(text=not json, stream=not no_stream, stats=shown, quiet=quiet)
    answer(question, open_session, view, json=json, dry_run=dry_run)
