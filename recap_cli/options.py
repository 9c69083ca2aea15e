"""Flags that several commands share, each said once, and what some of them mean together."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from engine.errors import UsageError
from engine.files import user_path
from engine.options import DEFAULT_MAX_TOKENS, DrafterOptions

# Said again here, as the modules that own them import much; a test holds the two together.
DEMO_MODEL = "demo"
BACKGROUND = "white"
MAX_IMAGE_PIXELS = 200_000_000

INPUT, MODEL, DECODING, OUTPUT = "Input", "Model", "Decoding", "Output"
"""Sections of a command's help."""


class Device(StrEnum):
    """Where a model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class DeviceMap(StrEnum):
    """How accelerate spreads a model over devices."""

    AUTO = "auto"
    BALANCED = "balanced"
    SEQUENTIAL = "sequential"


class DType(StrEnum):
    """Number format of weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Method(StrEnum):
    """How tokens are drafted."""

    RECAP = "recap"
    PLAIN = "plain"


def _some_text(stops: list[str] | None) -> list[str] | None:
    if stops and not all(stops):
        raise UsageError("--stop '' would end every answer before it began; give it a text")
    return stops


def _one_choice_of_devices(
    context: typer.Context, chosen: Device | DeviceMap | None
) -> Device | DeviceMap | None:
    """A callback of both flags: whichever is read last finds the other."""
    seen = [context.params.get("device"), context.params.get("device_map"), chosen]
    device = next((each for each in seen if isinstance(each, Device)), Device.AUTO)
    if device != Device.AUTO and any(isinstance(each, DeviceMap) for each in seen):
        raise UsageError(f"--device {device} and --device-map exclude each other")
    return chosen


ImageFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        "-i",
        metavar="SOURCE",
        help="A picture: a file, a URL, or - for standard input. Repeatable.",
        rich_help_panel=INPUT,
    ),
]
BackgroundFlag = Annotated[
    str,
    typer.Option(
        "--background",
        metavar="COLOUR",
        help="What is behind transparent pictures.",
        rich_help_panel=INPUT,
    ),
]
MaxImagePixelsFlag = Annotated[
    int,
    typer.Option(
        "--max-image-pixels",
        metavar="N",
        help="Refuse larger pictures; 0 takes any.",
        rich_help_panel=INPUT,
    ),
]
MaxPixelsFlag = Annotated[
    int | None,
    typer.Option(
        "--max-pixels",
        metavar="N",
        help="Show larger pictures to the model with this many pixels: fewer tokens, sooner.",
        rich_help_panel=INPUT,
    ),
]
MinPixelsFlag = Annotated[
    int | None,
    typer.Option(
        "--min-pixels",
        metavar="N",
        help="Show smaller pictures to the model with this many pixels.",
        rich_help_panel=INPUT,
    ),
]
TemplateFlag = Annotated[
    bool,
    typer.Option(
        "--template",
        help="{1} in the prompt is where the first picture stands, {2} the second.",
        rich_help_panel=INPUT,
    ),
]
SystemFlag = Annotated[
    str | None,
    typer.Option(
        "--system",
        "-s",
        metavar="TEXT",
        help="Instructions that come before the prompt.",
        rich_help_panel=INPUT,
    ),
]
ModelFlag = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        envvar="RECAP_MODEL",
        help="A Hugging Face id, a model folder, a name of --list-models, or the built-in demo.",
        rich_help_panel=MODEL,
    ),
]
DeviceFlag = Annotated[
    Device,
    typer.Option(
        "--device",
        metavar="DEVICE",
        callback=_one_choice_of_devices,
        help="Where the model runs: auto, cpu, cuda or mps.",
        rich_help_panel=MODEL,
    ),
]
DeviceMapFlag = Annotated[
    DeviceMap | None,
    typer.Option(
        "--device-map",
        metavar="MAP",
        callback=_one_choice_of_devices,
        help="Spread a large model over devices: auto, balanced or sequential (needs accelerate).",
        rich_help_panel=MODEL,
    ),
]
ListModelsFlag = Annotated[
    bool,
    typer.Option(
        "--list-models", help="Show models that have short names, and exit.", rich_help_panel=MODEL
    ),
]
DTypeFlag = Annotated[
    DType,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Number format: auto, float32, bfloat16 or float16.",
        rich_help_panel=MODEL,
    ),
]
CompileFlag = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the model before it answers: minutes once, less later, for faster passes.",
        rich_help_panel=MODEL,
    ),
]
MaxTokensFlag = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        metavar="N",
        min=1,
        help="Longest answer, in tokens.",
        show_default=f"{DEFAULT_MAX_TOKENS}, or what fits",
        rich_help_panel=DECODING,
    ),
]
StopFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        callback=_some_text,
        help="End the answer before this text. Repeatable.",
        rich_help_panel=DECODING,
    ),
]
MethodFlag = Annotated[
    Method,
    typer.Option(
        "--method",
        help="recap drafts tokens, plain does not; the answer is the same.",
        rich_help_panel=DECODING,
    ),
]
NodesFlag = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        metavar="N",
        help="Draft tokens in a pass; by default as many as pay on this machine.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
MemoryFlag = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="FILE",
        help="Token memory to use instead of the tokenizer's own.",
        rich_help_panel=DECODING,
    ),
]
NoMemoryFlag = Annotated[
    bool,
    typer.Option(
        "--no-memory",
        help="Neither read nor write a token memory's file.",
        rich_help_panel=DECODING,
    ),
]
JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Write one JSON object instead of text.", rich_help_panel=OUTPUT),
]
DryRunFlag = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Write the prompt as the model reads it, count its tokens, and compute nothing.",
        rich_help_panel=OUTPUT,
    ),
]
QuietFlag = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Only the answer, and errors.", rich_help_panel=OUTPUT),
]


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether a flag stands on the command line, rather than in the environment or nowhere.

    Args:
        name: of the parameter that it sets.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def is_default(context: typer.Context, name: str) -> bool:
    """Whether neither a flag nor the environment says anything of a parameter."""
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def memory_path(memory: str | None, no_memory: bool) -> Path | None:
    """The file that `--memory` names, if it does.

    Raises:
        UsageError: `--no-memory` was given, too, or it can be no file.
    """
    if memory is None:
        return None
    if no_memory:
        raise UsageError("--memory and --no-memory exclude each other")
    path = user_path(memory)
    if not path.name:
        raise UsageError(f"--memory names a file, and {memory!r} is none")
    return path


def drafter_options(nodes: int | None) -> DrafterOptions:
    """What `--nodes` says of drafting: a fixed size of trees, or None for what pays."""
    return DrafterOptions() if nodes is None else DrafterOptions(nodes=nodes, adaptive=False)
