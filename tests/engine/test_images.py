"""Whatever file people have becomes an upright RGB picture, or an error that says what to do."""

import io
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from engine.errors import ImageError, UsageError
from engine.images import ImageOptions, Picture, open_picture
from tests.pictures import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    animation,
    box,
    corner_colours,
    corners,
    encode,
    huge_png,
    photo,
    swapped_profile,
    tiff,
)

AVIF = "avif" in features.modules and features.check("avif")
NEEDS_AVIF = pytest.mark.skipif(not AVIF, reason="this Pillow has no AVIF")
SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>'


def opened(data: bytes, **options: Any) -> Picture:
    picture = open_picture("-", ImageOptions(**options), io.BytesIO(data))
    assert (picture.image.mode, picture.image.info) == ("RGB", {})
    return picture


def pixels(data: bytes, **options: Any) -> list[Any]:
    """Of a picture of one row."""
    (row,) = np.asarray(opened(data, **options).image).tolist()
    return [tuple(pixel) for pixel in row]


def greys(data: bytes) -> list[int]:
    row = pixels(data)
    assert all(red == green == blue for red, green, blue in row)
    return [red for red, _, _ in row]


def refusal(data: bytes, **options: Any) -> str:
    with pytest.raises(ImageError) as caught:
        opened(data, **options)
    message = str(caught.value)
    assert message.startswith("standard input: ")
    assert "\n" not in message
    return message


def row(mode: str, *values: Any) -> Image.Image:
    image = Image.new(mode, (len(values), 1))
    image.putdata(values)
    return image


class TestUpright:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
    def test_however_the_camera_was_held(self, format: str, orientation: int) -> None:
        picture = opened(photo(orientation, format))
        assert picture.image.size == corners().size
        assert corner_colours(picture.image) == [RED, GREEN, BLUE, WHITE]
        assert picture.notices == ()

    @NEEDS_AVIF
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_in_avif(self, orientation: int) -> None:
        assert corner_colours(opened(photo(orientation, "AVIF")).image)[:2] == [RED, GREEN]

    @pytest.mark.parametrize("orientation", [0, 9, 300])
    def test_an_orientation_that_does_not_exist_turns_nothing(self, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = opened(encode(corners(), "JPEG", exif=exif))
        assert corner_colours(picture.image) == [RED, GREEN, BLUE, WHITE]

    def test_exif_that_cannot_be_read_turns_nothing(self) -> None:
        picture = opened(encode(corners(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff junk"))
        assert corner_colours(picture.image) == [RED, GREEN, BLUE, WHITE]


class TestTransparency:
    """The colours under transparent pixels are not white, so that ignoring alpha would show."""

    @pytest.mark.parametrize(
        "image",
        [
            row("RGBA", (9, 9, 9, 0), (255, 0, 0, 255)),
            row("LA", (9, 0), (0, 255)),
            row("PA", (1, 0), (0, 255)),
        ],
        ids=lambda image: str(image.mode),
    )
    def test_of_an_alpha_channel(self, image: Image.Image) -> None:
        if image.mode == "PA":
            image.putpalette([255, 0, 0, 9, 9, 9])
        data = encode(image, "TIFF" if image.mode == "PA" else "PNG")
        clear, solid = pixels(data)
        assert clear == WHITE
        assert solid in (RED, (0, 0, 0))
        assert pixels(data, background="#00f") == [BLUE, solid]

    @pytest.mark.parametrize("format", ["PNG", "GIF"])
    def test_of_one_palette_entry(self, format: str) -> None:
        image = row("P", 0, 1)
        image.putpalette([9, 9, 9, 255, 0, 0])
        assert pixels(encode(image, format, transparency=0)) == [WHITE, RED]

    def test_of_many_palette_entries(self) -> None:
        image = row("P", 0, 1, 2)
        image.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 0])
        clear, solid, half = pixels(encode(image, "PNG", transparency=bytes([0, 255, 128])))
        assert (clear, solid) == (WHITE, RED)
        assert half == (127, 127, 127)

    @pytest.mark.parametrize(
        ("image", "transparent"),
        [
            (row("RGB", (9, 9, 9), RED), (9, 9, 9)),
            (row("L", 9, 0), 9),
            (row("1", 0, 255), 0),
            (row("I;16", 999, 65535), 999),
        ],
        ids=["RGB", "L", "1", "I;16"],
    )
    def test_of_one_colour(self, image: Image.Image, transparent: Any) -> None:
        data = encode(image, "PNG", transparency=transparent)
        clear, solid = pixels(data, background="blue")
        assert clear == BLUE
        assert solid != BLUE

    def test_half_of_it_mixes_with_the_background(self) -> None:
        data = encode(row("RGBA", (255, 0, 0, 128)), "PNG")
        assert pixels(data) == [(255, 127, 127)]
        assert pixels(data, background="black") == [(128, 0, 0)]


class TestColours:
    def test_16_bit_greys_are_scaled(self) -> None:
        assert greys(encode(row("I;16", 0, 257, 32896, 65535), "PNG")) == [0, 1, 128, 255]
        assert greys(encode(row("I;16", 0, 257, 32896, 65535), "TIFF")) == [0, 1, 128, 255]
        assert greys(b"P5 3 1 65535\n" + bytes([0, 0, 128, 128, 255, 255])) == [0, 128, 255]

    @pytest.mark.parametrize("kind", ["u2", "f4", "u1"])
    def test_zero_is_white_where_a_tiff_says_so(self, kind: str) -> None:
        values = np.array([[0, 1 if kind == "f4" else np.iinfo(kind).max]], kind)
        assert greys(tiff(values, zero_is_white=True)) == [255, 0]

    @pytest.mark.parametrize(
        ("kind", "values", "expected"),
        [
            ("i4", [0, 100, 255], [0, 100, 255]),
            ("i4", [0, 25700, 65535], [0, 100, 255]),
            ("f4", [0, 0.5, 1], [0, 128, 255]),
            ("f4", [0, 100, 255], [0, 100, 255]),
            ("f4", [np.nan, -np.inf, 0.5, np.inf], [0, 0, 128, 255]),
            ("f4", [np.nan, np.nan], [0, 0]),
        ],
    )
    def test_a_usual_range_is_kept(
        self, kind: str, values: list[float], expected: list[int]
    ) -> None:
        data = tiff(np.array([values], kind))
        assert greys(data) == expected
        assert opened(data).notices == ()

    @pytest.mark.parametrize(
        ("kind", "values", "expected"),
        [
            ("i4", [-100, 0, 155], [0, 100, 255]),
            ("i4", [100_000, 100_000], [0, 0]),
            ("f4", [-3e38, 0, 3e38], [0, 128, 255]),
        ],
    )
    def test_another_range_is_stretched_and_told(
        self, kind: str, values: list[float], expected: list[int]
    ) -> None:
        data = tiff(np.array([values], kind))
        assert greys(data) == expected
        (notice,) = opened(data).notices
        assert f"{values[0]:g} to {values[-1]:g}" in notice

    def test_one_bit_and_eight(self) -> None:
        assert greys(encode(row("1", 0, 255), "PNG")) == [0, 255]
        assert greys(encode(row("L", 0, 100, 255), "PNG")) == [0, 100, 255]

    @pytest.mark.parametrize("format", ["JPEG", "TIFF"])  # only the JPEG is stored inverted
    def test_cmyk(self, format: str) -> None:
        data = encode(corners().convert("CMYK"), format)
        assert format == "TIFF" or b"Adobe" in data
        assert corner_colours(opened(data).image) == [RED, GREEN, BLUE, WHITE]

    @pytest.mark.parametrize("mode", ["YCbCr", "LAB"])
    def test_other_colour_spaces(self, mode: str) -> None:
        (pixel,) = pixels(encode(row(mode, (255, 128, 128)), "TIFF"))
        assert min(pixel) >= 254

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
    def test_a_colour_profile_is_obeyed(self, mode: str) -> None:
        data = encode(corners().convert(mode), "PNG", icc_profile=swapped_profile())
        assert corner_colours(opened(data).image) == [BLUE, GREEN, RED, WHITE]

    def test_transparency_survives_a_colour_profile(self) -> None:
        image = row("RGBA", (9, 9, 9, 0), (255, 0, 0, 255))
        data = encode(image, "PNG", icc_profile=swapped_profile())
        assert pixels(data, background="red") == [RED, BLUE]

    @pytest.mark.parametrize(
        ("mode", "profile"),
        [("RGB", b"junk"), ("L", b"junk"), ("CMYK", b"junk"), ("CMYK", swapped_profile())],
        ids=["RGB, broken", "L, broken", "CMYK, broken", "CMYK, of RGB"],
    )
    def test_a_profile_that_does_not_fit_is_ignored(self, mode: str, profile: bytes) -> None:
        image = corners().convert(mode)
        data, plain = encode(image, "TIFF", icc_profile=profile), encode(image, "TIFF")
        assert opened(data).image.tobytes() == opened(plain).image.tobytes()


class TestFrames:
    @pytest.mark.parametrize(
        ("format", "word"),
        [("GIF", "frame"), ("PNG", "frame"), ("WEBP", "frame"), ("TIFF", "page")],
    )
    def test_the_first_is_used_and_told(self, format: str, word: str) -> None:
        picture = opened(animation(format))
        assert corner_colours(picture.image) == [RED] * 4
        assert picture.notices == (f"first {word} of 3 used",)

    def test_the_previews_in_a_phone_s_photo_are_not_frames(self) -> None:
        picture = opened(animation("MPO"))
        assert corner_colours(picture.image) == [RED] * 4
        assert picture.notices == ()


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "empty"),
            (b"just text", "not a picture in a known format"),
            (SVG, "SVG drawing"),
            (b"\xef\xbb\xbf  <svg/>", "SVG drawing"),
            (b"%PDF-1.7 ...", "PDF document"),
            (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
            (b"<!DOCTYPE html><p>Not found", "web page"),
            (b"\x1f\x8b\x08" + bytes(20), "gzip"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"\xff\x0a" + bytes(20), "JPEG XL"),
            (box(b"isom", b"mp42"), "video"),
            (b"\x1a\x45\xdf\xa3" + bytes(20), "video"),
            (b"\0\0\x01\xb3\x10\x01\x00" + bytes(20), "damaged"),  # Pillow knows MPEG by name only
            (huge_png(60_000), "--max-image-pixels"),
            (huge_png(0), "damaged"),
        ],
    )
    def test_name_the_reason(self, data: bytes, reason: str) -> None:
        assert reason in refusal(data)

    @pytest.mark.parametrize(
        "format", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "JPEG2000", "PPM"]
    )
    @pytest.mark.parametrize("part", [0.4, 0.9])
    def test_a_file_that_was_cut_short(self, format: str, part: float) -> None:
        noise = Image.frombytes("RGB", (40, 40), random.Random(0).randbytes(4800))
        data = encode(noise, format)
        assert "damaged or cut short" in refusal(data[: int(len(data) * part)])

    def test_a_damaged_file_is_a_picture_or_an_error_and_nothing_else(self) -> None:
        rng = random.Random(0)
        noise = Image.frombytes("RGB", (20, 20), rng.randbytes(1200))
        outcomes: set[type] = set()
        for format in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "JPEG2000", "ICO", "TGA"):
            data = encode(noise, format)
            for _ in range(60):
                damaged = bytearray(data)
                for _ in range(4):
                    damaged[rng.randrange(min(len(data), 100))] = rng.randrange(256)
                try:
                    outcomes.add(type(opened(bytes(damaged), max_pixels=10**6)))
                except ImageError:
                    outcomes.add(ImageError)
        assert outcomes == {Picture, ImageError}

    def test_the_limit_of_pixels_is_exact_and_zero_lifts_it(self) -> None:
        data = encode(Image.new("RGB", (10, 10)), "PNG")
        assert opened(data, max_pixels=100).image.size == (10, 10)
        assert "more than 99 pixels" in refusal(data, max_pixels=99)
        assert "more than 49 pixels" in refusal(data, max_pixels=49)
        assert opened(data, max_pixels=0).image.size == (10, 10)

    def test_pillow_s_own_limit_stays_as_it_was(self) -> None:
        before = Image.MAX_IMAGE_PIXELS
        refusal(huge_png(60_000))
        assert before == Image.MAX_IMAGE_PIXELS

    def test_of_heic_name_the_package_that_brings_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        assert "pip install pillow-heif" in refusal(box(b"heic", b"mif1", b"heic"))
        assert "pip install pillow-heif" in refusal(box(b"mif1", b"heic"))

    def test_of_avif_name_the_pillow_that_reads_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(features, "check", lambda _: False)
        assert "pillow>=11.3" in refusal(box(b"avif", b"mif1", b"avif"))


def test_heic_opens_where_its_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def register() -> None:
        png = io.BytesIO(encode(corners(), "PNG"))
        Image.register_open("HEIC", lambda *_: Image.open(png), lambda head: head[4:8] == b"ftyp")

    monkeypatch.setattr(Image, "OPEN", Image.OPEN.copy())
    monkeypatch.setattr(Image, "ID", Image.ID.copy())
    package = types.SimpleNamespace(register_heif_opener=register)
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    assert opened(box(b"heic")).image.size == corners().size


@NEEDS_AVIF
def test_avif_opens() -> None:
    picture = opened(encode(corners(), "AVIF", quality=100))
    assert corner_colours(picture.image) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("format", ["BMP", "ICO", "JPEG2000", "PCX", "PPM", "QOI", "TGA"])
def test_rarer_formats_open(format: str) -> None:
    image = corners().resize((32, 32), Image.Resampling.NEAREST)
    assert corner_colours(opened(encode(image, format)).image) == [RED, GREEN, BLUE, WHITE]


def test_the_name_s_ending_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(photo(6))
    picture = open_picture(str(path))
    assert corner_colours(picture.image) == [RED, GREEN, BLUE, WHITE]
    assert picture.source == str(path)


class TestOptions:
    @pytest.mark.parametrize("colour", ["grey", "#808080", "rgb(128,128,128)", "#80808000"])
    def test_a_background_is_named_as_in_css(self, colour: str) -> None:
        assert ImageOptions(background=colour).background_rgb == (128, 128, 128)

    @pytest.mark.parametrize(
        ("option", "value", "flag"),
        [
            ("background", "tarpaulin", "--background"),
            ("max_pixels", -1, "--max-image-pixels"),
            ("timeout_s", 0, "downloads"),
            ("max_bytes", 0, "downloads"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, option: str, value: Any, flag: str) -> None:
        with pytest.raises(UsageError, match=flag):
            ImageOptions(**{option: value})
