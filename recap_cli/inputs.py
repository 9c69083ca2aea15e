"""What goes into a request: the prompt, from wherever it comes, and the pictures."""

import sys
from collections.abc import Callable, Sequence

from engine.demo import looks_like_scene
from engine.errors import PromptError, UsageError
from engine.files import is_utf8, user_path
from engine.images import ImageOptions, Picture, open_picture

STDIN = "-"
NOT_A_SCENE = (
    "the demo model only knows drawn scenes of a few coloured shapes; for other pictures name a "
    "real model: -m HuggingFaceTB/SmolVLM-256M-Instruct (about 0.5 GB, runs on a laptop's CPU) or "
    "-m Qwen/Qwen2.5-VL-7B-Instruct (for a GPU)"
)
_WAYS = "give a prompt as an argument, with --file FILE, or on standard input"


def read_prompt(argument: str | None, file: str | None, images: Sequence[str]) -> str:
    """The prompt that the user means.

    Args:
        argument: given on the command line; `-` is standard input.
        file: a file that holds it; `-` is standard input.
        images: sources of pictures, one of which may claim standard input.

    Raises:
        UsageError: no prompt, two prompts, a file that cannot be read, or standard input that is
            asked for twice.
        PromptError: nothing in it, or not text.
    """
    if argument is not None and file is not None:
        raise UsageError("two prompts: give an argument or --file, not both")
    if STDIN in (argument, file) or (argument is None and file is None and not _terminal()):
        if STDIN in images:
            raise UsageError(
                "standard input holds a picture, so it cannot hold the prompt: "
                "give that as an argument, or with --file FILE"
            )
        return _text(sys.stdin.buffer.read() if sys.stdin else b"", "standard input")
    if file is not None:
        return _text(_bytes_of(file), file)
    if argument is None:
        raise UsageError(f"no prompt: {_WAYS}")
    return checked(argument, "the prompt", _WAYS)


def open_pictures(
    sources: Sequence[str], options: ImageOptions, tell: Callable[[str], None]
) -> list[Picture]:
    """Open every picture, in order; `tell` gets what the user should know about them.

    Raises:
        UsageError: standard input is asked for twice.
        ImageError: a picture cannot be opened or decoded.
    """
    if sources.count(STDIN) > 1:
        raise UsageError("standard input holds one picture: give --image - once")
    pictures = []
    for source in sources:
        picture = open_picture(source, options, sys.stdin.buffer if sys.stdin else None)
        for notice in picture.notices:
            tell(f"{picture.source}: {notice}")
        pictures.append(picture)
    return pictures


def warn_of_other_pictures(pictures: Sequence[Picture], tell: Callable[[str], None]) -> None:
    """Say so, once, where the demo model was not made for all of the pictures."""
    if not all(looks_like_scene(picture.image) for picture in pictures):
        tell(NOT_A_SCENE)


def checked(text: str, origin: str, way_out: str) -> str:
    """`text`, which came from `origin`.

    Raises:
        PromptError: nothing in it, or not text.
    """
    if not text.strip():
        raise PromptError(f"{origin} is empty: {way_out}")
    return in_utf8(text, origin)


def in_utf8(text: str, origin: str) -> str:
    """`text`, which came from `origin`. Raises PromptError where it has undecodable bytes."""
    if not is_utf8(text):
        raise PromptError(f"{origin} is not UTF-8 text")
    return text


def _terminal() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _bytes_of(file: str) -> bytes:
    try:
        return user_path(file).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot read the prompt from {file}: {reason}") from error


def _text(data: bytes, origin: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{origin} is not UTF-8 text (byte {error.start})") from error
    return checked(text.removesuffix("\n").removesuffix("\r"), origin, _WAYS)
