"""Sizes of pictures: within the user's limits, and such that a model's processor takes them.

Knows Pillow, and of transformers' image processors how they name their sizes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from PIL import Image

from engine.errors import ImageError, UsageError

_LEAST_SIDE = 64  # a few patches of any model
_RATIOS = (100, 10)  # of sides; to which a thin picture is padded
_MARGIN = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Pixels that a picture has when the model looks at it; None leaves that to the model.

    Attributes:
        least: smaller pictures are scaled up to it.
        most: larger pictures are scaled down to it.
    """

    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for flag, value in (("--min-pixels", self.least), ("--max-pixels", self.most)):
            if value is not None and value < 1:
                raise UsageError(f"{flag} must be at least 1, not {value}")
        if self.least and self.most and self.least > self.most:
            raise UsageError(f"--min-pixels {self.least} is above --max-pixels {self.most}")


def limited(
    image_processor: Any, images: Sequence[Image.Image], limits: PixelLimits
) -> tuple[list[Image.Image], dict[str, Any]]:
    """Pictures within limits, or the processor's own options that bring them there.

    Processors with a budget of pixels get it as it stands, and round to their patches. For the
    others pictures are scaled first. Of those, some scale every picture to one longest side
    (Idefics3), and are told the side that suits all pictures; some tile every picture (InternVL),
    and are told how many tiles the limit holds.

    Returns:
        The pictures, and what the processor is called with beside them.
    """
    if not images:
        return [], {}
    if "max_pixels" in getattr(image_processor.valid_kwargs, "__annotations__", ()):
        return list(images), _budget(image_processor.size, limits)
    side = _least_side(image_processor)
    scaled = [_enlarged(_scaled(image, limits), side) for image in images]
    return scaled, _options(image_processor, images, limits.most) if limits.most else {}


def _options(image_processor: Any, images: Sequence[Image.Image], most: int) -> dict[str, Any]:
    own = image_processor.size
    if hasattr(image_processor, "do_image_splitting"):
        sides = [int(max(i.size) * sqrt(most / (i.width * i.height))) for i in images]
        return {"size": {"longest_edge": min(own["longest_edge"], *sides)}}
    if hasattr(image_processor, "max_patches"):
        tiles = most // (own["height"] * own["width"])
        return {"max_patches": max(1, min(image_processor.max_patches, tiles))}
    return {}


def _least_side(image_processor: Any) -> int:
    """What the longer side of a picture has to have.

    Only Pixtral's processor enlarges nothing, and its models fail on a picture of one token.
    """
    keeps = set(dict(image_processor.size)) == {"longest_edge"}
    patch = getattr(image_processor, "patch_size", None)
    return patch + 1 if keeps and isinstance(patch, int) else 0


def _enlarged(image: Image.Image, least: int) -> Image.Image:
    factor = -(-_LEAST_SIDE // max(image.size)) if max(image.size) < least else 1
    size = (image.width * factor, image.height * factor)
    return image if factor == 1 else image.resize(size, Image.Resampling.NEAREST)


def _budget(own: Any, limits: PixelLimits) -> dict[str, Any]:
    if limits == PixelLimits():
        return {}
    least, most = limits.least or own["shortest_edge"], limits.most or own["longest_edge"]
    if limits.least is None:
        least = min(least, most)
    if limits.most is None:
        most = max(least, most)
    return {"size": {"shortest_edge": least, "longest_edge": most}}


def _scaled(image: Image.Image, limits: PixelLimits) -> Image.Image:
    pixels = image.width * image.height
    wanted = min(max(pixels, limits.least or 1), limits.most or max(pixels, limits.least or 1))
    if wanted == pixels:
        return image
    factor = sqrt(wanted / pixels)
    size = (max(1, int(image.width * factor)), max(1, int(image.height * factor)))
    return image.resize(size, Image.Resampling.LANCZOS)


def repaired(
    image_processor: Any, images: Sequence[Image.Image], options: dict[str, Any]
) -> tuple[list[Image.Image], list[str]]:
    """Pictures that the processor takes, with the same content.

    One that it refuses is scaled up, or gets a white margin on both long sides.

    Returns:
        The pictures, and a line for each that had to be changed.

    Raises:
        ImageError: the processor refuses a picture in any size; names it and the reason.
    """
    taken, notices = list(images), []
    for number, image in enumerate(images, 1):
        which = f"picture {number} of {len(images)}" if len(images) > 1 else "the picture"
        size = f"{image.width}x{image.height} pixels"
        reason = _refusal(image_processor, image, options)
        if reason:
            fits = (c for c in _candidates(image) if not _refusal(image_processor, c, options))
            fitting = next(fits, None)
            if fitting is None:
                raise ImageError(f"{which} ({size}) does not fit the model: {reason}")
            shown = f"shown to it as {fitting.width}x{fitting.height}"
            notices.append(f"{which} ({size}) is too small or too thin for the model: {shown}")
            taken[number - 1] = fitting
    return taken, notices


def _refusal(image_processor: Any, image: Image.Image, options: dict[str, Any]) -> str:
    """Why the processor refuses a picture; empty where it takes it."""
    try:
        image_processor([image], **options)
    except Exception as error:  # processors raise whatever their arithmetic meets
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _candidates(image: Image.Image) -> Iterator[Image.Image]:
    """The same content in sizes that more processors take, the least changed first."""
    factor = -(-_LEAST_SIDE // min(image.size))
    if factor > 1 and max(image.size) * factor <= _LEAST_SIDE * _RATIOS[0]:
        yield image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    for ratio in _RATIOS:
        least = -(-max(image.size) // ratio)
        if least > min(image.size):
            yield _padded(image, (max(image.width, least), max(image.height, least)))


def _padded(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    canvas = Image.new("RGB", size, _MARGIN)
    canvas.paste(image, ((size[0] - image.width) // 2, (size[1] - image.height) // 2))
    return canvas
