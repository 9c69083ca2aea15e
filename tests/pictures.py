"""Picture files of every kind that people have, made by code: nothing binary is committed."""

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
SIZE = (48, 32)  # wider than high, in blocks of JPEG's 16 pixels

# What an EXIF orientation asks of a viewer, undone: stored = STORED[orientation](upright).
STORED = {
    1: lambda image: image.copy(),
    2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
}


def corners() -> Image.Image:
    """Red, green, blue and white, clockwise from the top left: no turn leaves it as it is."""
    image = Image.new("RGB", SIZE)
    width, height = SIZE[0] // 2, SIZE[1] // 2
    for colour, corner in (
        (RED, (0, 0)),
        (GREEN, (width, 0)),
        (BLUE, (width, height)),
        (WHITE, (0, height)),
    ):
        image.paste(colour, (*corner, corner[0] + width, corner[1] + height))
    return image


def corner_colours(image: Image.Image) -> list[tuple[int, ...]]:
    """Clockwise from the top left, of what may have been through JPEG: channels 0, 128 or 255."""
    right, bottom = image.width - 4, image.height - 4
    pixels = np.asarray(image).astype(int)
    found = [pixels[y, x] for x, y in ((3, 3), (right, 3), (right, bottom), (3, bottom))]
    return [tuple(min(255, round(c / 128) * 128) for c in colour) for colour in found]


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    """The file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def photo(orientation: int, format: str = "JPEG") -> bytes:
    """`corners`, as a camera held that way stores it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(STORED[orientation](corners()), format, exif=exif)


def animation(format: str, colours: Sequence[str] = ("red", "green", "blue")) -> bytes:
    """One frame (or page) of each colour."""
    first, *others = (Image.new("RGB", SIZE, colour) for colour in colours)
    return encode(first, format, save_all=True, append_images=others)


def huge_png(side: int) -> bytes:
    """A PNG of side x side pixels that ends where the pixels should begin."""
    body = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    header = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + header + struct.pack(">I", 99) + b"IDAT"


def tiff(values: npt.NDArray[Any], *, zero_is_white: bool = False) -> bytes:
    """A grey TIFF of (height, width) values in their own type, which Pillow cannot always write."""
    height, width = values.shape
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    sample_format = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    tags = {
        256: width,
        257: height,
        258: values.itemsize * 8,
        259: 1,
        262: 0 if zero_is_white else 1,
        273: 8,
        277: 1,
        278: height,
        279: len(data),
        339: sample_format,
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


def box(brand: bytes, *compatible: bytes) -> bytes:
    """How a HEIC, AVIF or MP4 file begins, and no more."""
    body = b"ftyp" + brand + bytes(4) + b"".join(compatible)
    return struct.pack(">I", len(body) + 4) + body + bytes(64)


def swapped_profile() -> bytes:
    """An ICC profile (sRGB's primaries, gamma 1.0) whose first channel is blue and third is red."""
    red, green, blue = (0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)
    d50 = (0.9642, 1.0, 0.8249)
    tags = {b"wtpt": _xyz(d50), b"rXYZ": _xyz(blue), b"gXYZ": _xyz(green), b"bXYZ": _xyz(red)}
    linear = struct.pack(">4s4xI", b"curv", 0)
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), linear)
    offset, table, data = 128 + 4 + 12 * len(tags), b"", b""
    for name, value in tags.items():
        table += struct.pack(">4sII", name, offset + len(data), len(value))
        data += value
    size = offset + len(data)
    head = struct.pack(">I4xI4s4s4s", size, 0x02400000, b"mntr", b"RGB ", b"XYZ ")
    head = head.ljust(36, b"\0") + b"acsp" + bytes(28) + _s15(d50)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ " + bytes(4) + _s15(values)


def _s15(values: Sequence[float]) -> bytes:
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)
