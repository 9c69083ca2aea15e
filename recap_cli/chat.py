"""`recap chat`: a conversation, typed or from a pipe."""

from functools import partial
from typing import Annotated

import typer

from recap_cli import options, sessions


def chat(
    context: typer.Context,
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            "-i",
            metavar="SOURCE",
            help="A picture for the first message: a file or a URL. Repeatable.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    background: options.BackgroundFlag = options.BACKGROUND,
    max_image_pixels: options.MaxImagePixelsFlag = options.MAX_IMAGE_PIXELS,
    max_pixels: options.MaxPixelsFlag = None,
    min_pixels: options.MinPixelsFlag = None,
    system: options.SystemFlag = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Go on with a saved conversation.",
            rich_help_panel=options.INPUT,
        ),
    ] = None,
    model: options.ModelFlag = options.DEMO_MODEL,
    device: options.DeviceFlag = options.Device.AUTO,
    device_map: options.DeviceMapFlag = None,
    dtype: options.DTypeFlag = options.DType.AUTO,
    compile: options.CompileFlag = False,
    max_tokens: options.MaxTokensFlag = None,
    stop: options.StopFlag = None,
    drop_oldest: Annotated[
        bool,
        typer.Option(
            "--drop-oldest",
            help="Let go of the oldest turns where the model's context is full.",
            rich_help_panel=options.DECODING,
        ),
    ] = False,
    method: options.MethodFlag = options.Method.RECAP,
    nodes: options.NodesFlag = None,
    memory: options.MemoryFlag = None,
    no_memory: options.NoMemoryFlag = False,
    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write the conversation to a file, after every turn.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="Write one JSON object a turn instead of text.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="On a terminal, show answers as Markdown, paragraph by paragraph.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history",
            help="Do not keep what is typed for the next run.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    quiet: options.QuietFlag = False,
) -> None:
    """Talk about pictures, or without any; /help shows the commands.

    Off a terminal every line of standard input is a message, or a command.

    recap chat -i photo.jpg --save talk.json

    recap chat --jsonl < turns.txt
    """
    from engine.files import user_path  # noqa: PLC0415
    from engine.images import ImageOptions  # noqa: PLC0415
    from engine.sizes import PixelLimits  # noqa: PLC0415
    from recap_cli import chat_loop  # noqa: PLC0415
    from recap_cli.chat_input import history_path, is_interactive  # noqa: PLC0415
    from recap_cli.chat_talk import Settings, refuse_to_replace  # noqa: PLC0415
    from recap_cli.inputs import in_utf8  # noqa: PLC0415
    from recap_cli.render import View  # noqa: PLC0415

    interactive = is_interactive()
    resumed = user_path(resume) if resume is not None else None
    saved = user_path(save) if save is not None else None
    if saved and saved != resumed:
        refuse_to_replace(saved)
    open_session = partial(
        sessions.open_session,
        device=device,
        device_map=device_map,
        dtype=dtype,
        compile=compile,
        method=method,
        memory=not no_memory,
        memory_file=options.memory_path(memory, no_memory),
        drafter=options.drafter_options(nodes),
    )
    beginning = chat_loop.Beginning(
        images=image or (),
        resume=resumed,
        system=in_utf8(system, "--system") if system else None,
        max_tokens=max_tokens,
        stop=stop or (),
        pixels=PixelLimits(min_pixels, max_pixels),
        drop_oldest=drop_oldest,
        history=None if no_history else history_path(),
    )
    settings = Settings(
        model=model,
        named=not options.is_default(context, "model"),
        method=method,
        image_options=ImageOptions(background=background, max_pixels=max_image_pixels),
        interactive=interactive,
        jsonl=jsonl,
        save=saved,
    )
    view = View(text=not jsonl, brief=True, quiet=quiet, markdown=markdown)
    good = chat_loop.chat(beginning, settings, open_session, view)
    if not (good or interactive):
        raise typer.Exit(1)
