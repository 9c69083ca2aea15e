"""The warning about pictures that the demo model was not made for hits the right ones."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw

from engine.demo import looks_like_scene
from engine.demo.scenes import draw_scene


def _photo(seed: int) -> Image.Image:
    """Coarse coloured noise scaled up: smooth, full of colours, no plain background."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((300, 300), Image.Resampling.BICUBIC)


def _page() -> Image.Image:
    """Dark text on paper."""
    page = Image.new("RGB", (300, 300), (236, 232, 220))
    draw = ImageDraw.Draw(page)
    for row in range(20):
        draw.text((8, 4 + 15 * row), "Sphinx of black quartz, judge my vow.", fill=(60, 55, 50))
    return page


def test_scenes_look_like_scenes() -> None:
    assert sum(looks_like_scene(draw_scene(seed)[0]) for seed in range(300)) >= 297


def test_scenes_do_so_after_another_round_of_jpeg_and_in_other_sizes() -> None:
    for seed in range(20):
        buffer = io.BytesIO()
        draw_scene(seed)[0].resize((96, 96)).save(buffer, "JPEG", quality=50)
        assert looks_like_scene(Image.open(buffer))


@pytest.mark.parametrize("seed", range(10))
def test_photos_do_not(seed: int) -> None:
    assert not looks_like_scene(_photo(seed))


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (200, 200), "white"),
        Image.new("RGB", (200, 200), "navy"),
        Image.new("L", (1, 1)),
        _page(),
        draw_scene(3)[0].resize((600, 200)),
    ],
    ids=["blank", "one colour", "one pixel", "page", "stretched"],
)
def test_neither_do_pictures_without_shapes(image: Image.Image) -> None:
    assert not looks_like_scene(image)


def test_any_mode_is_taken() -> None:
    assert looks_like_scene(draw_scene(5)[0].convert("RGBA"))


def test_asking_imports_no_torch() -> None:
    code = "import sys, engine.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
