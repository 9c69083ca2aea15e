"""Any picture -> an upright RGB image of eight bits a channel, or a clear error (Pillow).

Knows file formats and colours. Where the bytes come from is `image_sources`' business; what size
a model takes is its family's.
"""

import hashlib
import importlib
import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageCms, ImageColor, ImageOps, UnidentifiedImageError, features

from engine.errors import UsageError
from engine.image_sources import absolute, open_source, printable_name, refuse

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1024  # enough to tell a file that is not a picture
_PILLOW_SETTINGS = threading.Lock()  # Pillow's limit and Python's warning filters are process-wide

# What the EXIF orientation (tag 0x0112) asks for, so that the picture stands upright.
_EXIF_ORIENTATION = 0x0112
_PHOTOMETRIC = 262  # a TIFF's tag: 0 where zero is white
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Formats whose further frames are further pictures. Those of a phone's MPO are previews and gain
# maps, those of a PSD are layers of the picture that is used: no notice for them.
_SERIES = {"GIF": "frame", "PNG": "frame", "WEBP": "frame", "AVIF": "frame", "TIFF": "page"}

# Grey modes of more than eight bits -> the values that are white in them; I and F do not say.
_USUAL_WHITES = {"I;16": (65535.0,), "I": (255.0, 65535.0), "F": (1.0, 255.0, 65535.0)}

_AVIF_BRANDS = {b"avif", b"avis"}
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_RASTERISE = "not a raster picture; export it as PNG or JPEG"
_NOT_PICTURES = {  # how a file begins -> what to say about it
    b"%PDF-": f"a PDF document, {_RASTERISE}",
    b"%!PS": f"PostScript, {_RASTERISE}",
    b"\xc5\xd0\xd3\xc6": f"PostScript, {_RASTERISE}",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\x1a\x45\xdf\xa3": "a video; export a frame of it as PNG or JPEG",
    b"\xff\x0a": "JPEG XL, which cannot be read; convert it to PNG or JPEG",
    b"\x00\x00\x00\x0cJXL ": "JPEG XL, which cannot be read; convert it to PNG or JPEG",
    b"version https://git-lfs": "a Git LFS pointer, not the picture; run `git lfs pull`",
}


@dataclass(frozen=True, slots=True)
class PictureSource:
    """What a picture was read from.

    name: as the user named it; of a file the absolute path.
    sha256: of the bytes that were read, in hexadecimal digits.
    """

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Picture:
    """What one `--image` became.

    image: RGB, upright, fully decoded, without metadata that would turn it a second time.
    source: as the user named it, made printable; of a data: URL only what precedes the data.
    origin: what it was read from, to read it again.
    notices: what the user should know about it, such as "first frame of 12 used".
    """

    image: Image.Image
    source: str
    origin: PictureSource
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How pictures are opened. Raises UsageError where a value makes no sense.

    background: the colour behind transparency, as CSS writes it: a name, #rgb, #rrggbb, rgb(...).
    max_pixels: larger pictures are refused before they are decoded, as they may be bombs; 0 lifts
        the limit. The default admits a phone's 200 megapixels (600 MB decoded).
    timeout_s: seconds for each wait for a server, and for a whole download.
    max_bytes: of what is not a file: a URL, standard input, a pipe.
    """

    background: str = "white"
    max_pixels: int = 200_000_000
    timeout_s: float = 30.0
    max_bytes: int = 100_000_000

    def __post_init__(self) -> None:
        try:
            ImageColor.getrgb(self.background)
        except ValueError as error:
            way_out = "give a name (white) or a code (#ffffff)"
            raise UsageError(f"--background {self.background!r}: no colour; {way_out}") from error
        if self.max_pixels < 0:
            way_out = "give a number of pixels, or 0 for no limit"
            raise UsageError(f"--max-image-pixels {self.max_pixels}: negative; {way_out}")
        if self.timeout_s <= 0 or self.max_bytes <= 0:
            raise UsageError("the time and size limits of downloads must be above zero")

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        """The background as red, green, blue of 0..255."""
        red, green, blue = ImageColor.getrgb(self.background)[:3]
        return red, green, blue


def open_picture(
    source: str, options: ImageOptions | None = None, stdin: BinaryIO | None = None
) -> Picture:
    """Open the picture that `source` names: a path (`~` allowed), an http(s) or data: URL, or `-`
    for the one picture that `stdin` holds.

    Raises:
        ImageError: one line that names the source, the reason and the way out.
    """
    options = options or ImageOptions()
    with (
        open_source(source, stdin, options.timeout_s, options.max_bytes) as stream,
        _pillow_settings(options.max_pixels),
    ):
        _refuse_known_others(source, stream)
        with _pillow_errors(source, options.max_pixels):
            digest = _digest(stream)
            image, notices = _decode(stream, options.background_rgb)
    origin = PictureSource(absolute(source), digest)
    return Picture(image, printable_name(source), origin, tuple(notices))


def _digest(stream: BinaryIO) -> str:
    """SHA-256 of a stream from its first byte, where it is left standing."""
    digest = hashlib.sha256()
    for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b""):
        digest.update(chunk)
    stream.seek(0)
    return digest.hexdigest()


def _refuse_known_others(source: str, stream: BinaryIO) -> None:
    """Name what Pillow cannot read, or must not (it would hand PostScript to Ghostscript)."""
    head = stream.read(_HEAD_BYTES)
    stream.seek(0)
    if not head:
        refuse(source, "empty (0 bytes); copy or download it again")
    for start, what in _NOT_PICTURES.items():
        if head.startswith(start):
            refuse(source, what)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        refuse(source, "a web page, not a picture; give the address of the picture itself")
    if text.startswith(b"<") and b"<svg" in text:
        refuse(source, f"an SVG drawing, {_RASTERISE}")
    if head[4:8] == b"ftyp":
        _refuse_by_brand(source, head)


def _refuse_by_brand(source: str, head: bytes) -> None:
    """AVIF, HEIC and videos share a container, whose first box lists the brands of its kind."""
    end = min(int.from_bytes(head[:4]), len(head))
    brands = {head[8:12], *(head[i : i + 4] for i in range(16, end, 4))}
    if brands & _AVIF_BRANDS:
        if not features.check("avif"):
            refuse(source, "AVIF, which this Pillow cannot read; pip install -U 'pillow>=11.3'")
    elif brands & _HEIF_BRANDS:
        try:
            importlib.import_module("pillow_heif").register_heif_opener()
        except ImportError as error:
            refuse(source, "HEIC needs a package more: pip install pillow-heif", error)
    else:
        refuse(source, "a video or a camera's raw file; export it as PNG or JPEG")


def _decode(stream: BinaryIO, background: tuple[int, int, int]) -> tuple[Image.Image, list[str]]:
    """The picture as RGB, and what the user should know about it."""
    image = Image.open(stream)
    frames = getattr(image, "n_frames", 1)
    notices = []
    if frames > 1 and image.format in _SERIES:
        notices.append(f"first {_SERIES[image.format]} of {frames} used")
    image.load()
    upright = _upright(image)
    if upright.mode == "F" or upright.mode.startswith("I"):
        upright, stretched = _eight_bits(upright)
        notices += stretched
        if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:  # Pillow inverts 8 bits only
            upright = ImageOps.invert(upright)
    rgb = _flatten(_in_srgb(upright), background)
    rgb.info = {}
    return rgb, notices


@contextmanager
def _pillow_settings(max_pixels: int) -> Iterator[None]:
    """Pillow refuses pictures of more than `max_pixels` (0: none) and says nothing else.

    Left alone, it only warns up to twice its limit.
    """
    with _PILLOW_SETTINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels or None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


@contextmanager
def _pillow_errors(source: str, max_pixels: int) -> Iterator[None]:
    try:
        yield
    except UnidentifiedImageError as error:
        refuse(
            source, "not a picture in a known format, or damaged; export it as PNG or JPEG", error
        )
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = f"more than {max_pixels:,} pixels, perhaps a decompression bomb"
        refuse(source, f"{limit}; if you trust it, --max-image-pixels 0 lifts the limit", error)
    except MemoryError as error:
        refuse(source, "too large for this machine's memory; scale it down", error)
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        reason = str(error) or type(error).__name__
        refuse(source, f"damaged or cut short ({reason}); copy or download it again", error)


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # metadata that cannot be read turns nothing
        return image
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _eight_bits(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """Scale greys of 16 or 32 bits, or floats, to mode L (LA where one grey is transparent).

    0 is black, and white the first of the mode's usual whites that no value exceeds. Where there
    is none, the lowest and the highest value are black and white, and a notice says so.
    """
    values = np.asarray(image).astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    whites = [white for white in _USUAL_WHITES[image.mode[:4]] if high <= white and low >= 0]
    notices = [] if whites else [f"grey values {low:g} to {high:g} stretched to black and white"]
    black, white = (0.0, whites[0]) if whites else (low, high)
    known = np.nan_to_num(values, nan=black, posinf=white, neginf=black)
    greys = np.rint((known - black) / ((white - black) or 1.0) * 255)
    result = Image.fromarray(greys.astype(np.uint8))
    transparent = image.info.get("transparency")
    if transparent is not None:
        result.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return result, notices


def _in_srgb(image: Image.Image) -> Image.Image:
    """RGB, or RGBA where something is transparent, in sRGB: a phone's Display P3 and a printer's
    CMYK come with the colour profile that says what their numbers mean."""
    if image.mode != "CMYK":
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    target = "RGB" if image.mode == "CMYK" else image.mode
    if profile := image.info.get("icc_profile"):
        try:
            transform = ImageCms.buildTransform(
                io.BytesIO(profile),
                ImageCms.createProfile("sRGB"),
                image.mode,
                target,
                ImageCms.Intent.RELATIVE_COLORIMETRIC,
                ImageCms.Flags.BLACKPOINTCOMPENSATION,
            )
            return transform.apply(image)
        except ImageCms.PyCMSError:  # a broken profile, or one of another kind of picture
            pass
    return image.convert(target)


def _flatten(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode == "RGB":
        return image
    flat = Image.new("RGB", image.size, background)
    flat.paste(image, mask=image.getchannel("A"))
    return flat
