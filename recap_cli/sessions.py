"""The one place that imports the part of `engine` that needs torch, and only when it is called."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.options import DrafterOptions
from recap_cli.options import Device, DType, Method

if TYPE_CHECKING:
    from PIL import Image

    from engine.session import Request, Session


def open_session(
    *,
    model: str,
    device: Device,
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
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    from engine.session import Session, SessionOptions  # noqa: PLC0415

    if not progress:
        disable_progress_bars()
    return Session.open(
        SessionOptions(
            model=model,
            device=device.value,
            dtype=dtype.value,
            method=method.value,
            memory=memory,
            memory_file=memory_file,
            drafter=drafter,
        )
    )


def make_request(
    prompt: str,
    system: str | None,
    images: Sequence["Image.Image"],
    max_tokens: int | None,
    elapsed_s: float,
) -> "Request":
    """A conversation of one question."""
    from engine.prompts import Message  # noqa: PLC0415
    from engine.session import Request  # noqa: PLC0415

    instructions = [Message("system", system)] if system else []
    return Request([*instructions, Message("user", prompt, tuple(images))], max_tokens, elapsed_s)
