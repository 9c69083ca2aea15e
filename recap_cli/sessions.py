"""The one place that imports the part of `engine` that needs torch, and only when it is called."""

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.files import user_path
from engine.options import DrafterOptions
from recap_cli.options import DEMO_MODEL, Device, DeviceMap, DType, Method

if TYPE_CHECKING:
    from PIL import Image

    from engine.bench.cost import Subject
    from engine.conversation import Conversation
    from engine.events import Encoded, Notice
    from engine.images import ImageOptions, Picture
    from engine.loading import LoadedModel
    from engine.prompts import Message
    from engine.session import Request, Session
    from engine.sizes import PixelLimits
    from engine.transcript import Transcript


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
    compile: bool = False,
) -> "Session":
    """Load a model; see `engine.session.SessionOptions` and `Session.open`.

    `progress` lets a download show how far it is, on stderr.
    """
    import_libraries()
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
            compile=compile,
        )
    )


def load_model(
    *, model: str, device: Device, device_map: DeviceMap | None, dtype: DType, progress: bool
) -> "LoadedModel":
    """A model without a session, for transformers too; see `engine.loading.load_model`.

    `progress` lets a download show how far it is, on stderr.
    """
    import_libraries()
    from engine.loading import load_model  # noqa: PLC0415

    _show_downloads(progress)
    return load_model(
        model,
        device.value,
        dtype.value,
        device_map.value if device_map else None,
        spare=True,
    )


def cost_subject(
    *,
    model: str,
    device: Device,
    dtype: DType,
    random_weights: bool,
    compile: bool,
    say: Callable[[str], None],
    progress: bool,
) -> "Subject":
    """A model whose passes are to be timed; see `engine.bench.cost.open_subject`.

    `progress` lets a download show how far it is, on stderr.
    """
    import_libraries()
    from engine.bench.cost import open_subject  # noqa: PLC0415

    _show_downloads(progress)
    return open_subject(
        model, device.value, dtype.value, random_weights=random_weights, compile=compile, say=say
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
    import_libraries()
    from engine.prompts import Message  # noqa: PLC0415
    from engine.session import Request  # noqa: PLC0415

    instructions = [Message("system", system)] if system else []
    question = Message("user", prompt, tuple(images), template)
    return Request([*instructions, question], max_tokens, elapsed_s, stop, pixels)


def start_conversation(
    session: "Session",
    *,
    system: str | None,
    max_tokens: int | None,
    stop: Sequence[str],
    pixels: "PixelLimits",
    drop_oldest: bool,
) -> "Conversation":
    """A conversation in which nothing was said."""
    from engine.conversation import Conversation  # noqa: PLC0415

    return Conversation(
        session,
        system=system,
        max_tokens=max_tokens,
        stop=stop,
        pixels=pixels,
        drop_oldest=drop_oldest,
    )


def make_message(text: str, pictures: "Sequence[Picture]") -> "Message":
    """What a user says in a conversation, behind pictures."""
    from engine.prompts import Message  # noqa: PLC0415

    images = tuple(picture.image for picture in pictures)
    return Message("user", text, images, sources=tuple(picture.origin for picture in pictures))


def load_transcript(path: Path, options: "ImageOptions") -> "Transcript":
    """See `engine.transcript`."""
    import_libraries()
    from engine.transcript import load_transcript  # noqa: PLC0415

    return load_transcript(path, options)


def save_transcript(path: Path, transcript: "Transcript") -> None:
    """See `engine.transcript`."""
    from engine.transcript import save_transcript  # noqa: PLC0415

    save_transcript(path, transcript)


def is_local(model: str) -> bool:
    """Whether a model is certainly on this machine."""
    return model == DEMO_MODEL or user_path(model).is_dir()


@cache
def import_libraries() -> None:
    """Import PyTorch and transformers, without a search for garbage among them, now and later.

    They are hundreds of thousands of objects that stay until the end: to go through them again and
    again takes a quarter of the time to import them, a fifth of a second in the middle of some
    answer, and most of a second at exit. Call this before anything that imports them.
    """
    gc.disable()
    try:
        import engine.session  # noqa: F401, PLC0415
    finally:
        gc.freeze()
        gc.enable()


def _show_downloads(progress: bool) -> None:
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    if not progress:
        disable_progress_bars()
