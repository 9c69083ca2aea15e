"""The one place that imports the part of `engine` that needs torch, and only when it is called."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.options import DrafterOptions
from recap_cli.options import Device, DeviceMap, DType, Method

if TYPE_CHECKING:
    from PIL import Image

    from engine.events import Encoded, Notice
    from engine.session import Request, Session
    from engine.sizes import PixelLimits


def open_session(
    *,
    model: str,
    device: Device,
    device_map: DeviceMap | None,
    dtype: DType,
    method: Method,
    memory: bool,
    memory_file: Path | None,
    drafter: DrafterOptions,
    progress: bool,
) -> "Session":
    """Load a model; see `engine.session.SessionOptions` and `Session.open`.

    `progress` lets a download show how far it is, on stderr.
    """
    from engine.session import Session, SessionOptions  # noqa: PLC0415

    _show_downloads(progress)
    return Session.open(
        SessionOptions(
            model=model,
            device=device.value,
            device_map=device_map.value if device_map else None,
            dtype=dtype.value,
            method=method.value,
            memory=memory,
            memory_file=memory_file,
            drafter=drafter,
        )
    )


def dry_run(model: str, request: "Request", *, progress: bool) -> "Iterator[Notice | Encoded]":
    """What a request would cost; see `engine.dry_run`."""
    from engine.dry_run import dry_run  # noqa: PLC0415

    _show_downloads(progress)
    return dry_run(model, request)


def make_request(
    prompt: str,
    system: str | None,
    images: Sequence["Image.Image"],
    *,
    max_tokens: int | None,
    elapsed_s: float,
    stop: Sequence[str],
    pixels: "PixelLimits",
    template: bool,
) -> "Request":
    """A conversation of one question."""
    from engine.prompts import Message  # noqa: PLC0415
    from engine.session import Request  # noqa: PLC0415

    instructions = [Message("system", system)] if system else []
    question = Message("user", prompt, tuple(images), template)
    return Request([*instructions, question], max_tokens, elapsed_s, stop, pixels)


def _show_downloads(progress: bool) -> None:
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    if not progress:
        disable_progress_bars()
