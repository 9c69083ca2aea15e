"""Synthetic scenes: one to five coloured shapes on a plain background, drawn from a seed.

Knows what a scene is and how to paint it. What is said about a scene is in `wording`; how a model
learns it is in `train`. `python -m engine.demo.scenes OUT --count N --seed S` writes pictures and a
JSONL of questions for benchmarks.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from engine.demo.palette import BACKGROUNDS, COLOURS
from engine.demo.questions import conversation
from engine.demo.wording import KINDS, Scene, Shape

# Radii in units of a third of the picture's side; the gap between the two sizes is what names them.
SIZES: dict[str, tuple[float, float]] = {"small": (0.23, 0.27), "large": (0.40, 0.45)}
_JITTER = 0.08  # of a cell; a shape that has the picture to itself may stray further
_JITTER_ALONE = 0.25
_MAX_TURN = 12.0  # degrees
_OVERSAMPLING = 3


def draw_scene(seed: int, count: int | None = None) -> tuple[Image.Image, Scene]:
    """Make up a scene and paint it; the same arguments give the same picture, pixel for pixel.

    Args:
        seed: any non-negative integer.
        count: how many shapes, one to five; drawn from the seed when None.

    Returns:
        A square RGB picture with a side of 168 to 320 pixels, and what it shows. Every second
        picture has been through JPEG.
    """
    rng = _generator(seed)
    scene = _invent(rng, count)
    return paint_scene(scene, rng), scene


def paint_scene(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """Paint a scene; `rng` chooses size, shades, exact places, noise and whether it is a JPEG."""
    image = _paint(scene, int(rng.integers(168, 321)), rng)
    if rng.random() < 0.5:
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=int(rng.integers(70, 96)))
        image = Image.open(buffer)
        image.load()
    return image


def imagine_scene(seed: int, count: int | None = None) -> Scene:
    """The scene that `draw_scene` paints from the same arguments."""
    return _invent(_generator(seed), count)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 20_251_108])


def _invent(rng: np.random.Generator, count: int | None) -> Scene:
    """A scene whose shapes all differ in colour or kind, in reading order."""
    number = int(rng.integers(1, 6)) if count is None else count
    cells = sorted(int(cell) for cell in rng.choice(9, size=number, replace=False))
    looks = rng.choice(len(COLOURS) * len(KINDS), size=number, replace=False)
    shapes = tuple(
        Shape(
            kind=KINDS[int(look) // len(COLOURS)],
            colour=tuple(COLOURS)[int(look) % len(COLOURS)],
            size=tuple(SIZES)[int(rng.integers(2))],
            row=cell // 3,
            column=cell % 3,
        )
        for cell, look in zip(cells, looks, strict=True)
    )
    return Scene(background=tuple(BACKGROUNDS)[int(rng.integers(len(BACKGROUNDS)))], shapes=shapes)


def _paint(scene: Scene, side: int, rng: np.random.Generator) -> Image.Image:
    """Background, shapes, then noise that is equal in the three channels."""
    image = Image.new("RGB", (side, side), _shade(BACKGROUNDS[scene.background], 5, rng))
    cell = side / 3
    jitter = _JITTER if len(scene.shapes) > 1 else _JITTER_ALONE
    for shape in scene.shapes:
        radius = rng.uniform(*SIZES[shape.size]) * cell
        x = (shape.column + 0.5 + rng.uniform(-jitter, jitter)) * cell
        y = (shape.row + 0.5 + rng.uniform(-jitter, jitter)) * cell
        stencil = _stencil(shape.kind, radius, math.radians(rng.uniform(-_MAX_TURN, _MAX_TURN)))
        corner = (round(x - stencil.width / 2), round(y - stencil.height / 2))
        image.paste(_shade(COLOURS[shape.colour], 12, rng), corner, stencil)
    noise = rng.standard_normal((side, side, 1), dtype=np.float32) * rng.uniform(0, 8)
    noisy = np.asarray(image, dtype=np.float32) + noise
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def _shade(
    colour: tuple[int, int, int], spread: int, rng: np.random.Generator
) -> tuple[int, int, int]:
    red, green, blue = (
        int(np.clip(value + rng.integers(-spread, spread + 1), 0, 255)) for value in colour
    )
    return red, green, blue


def _stencil(kind: str, radius: float, turn: float) -> Image.Image:
    """An anti-aliased mask (mode L) with the shape in its middle."""
    side = math.ceil(2.5 * radius)
    large = Image.new("L", (side * _OVERSAMPLING, side * _OVERSAMPLING))
    draw = ImageDraw.Draw(large)
    middle, scale = large.width / 2, radius * _OVERSAMPLING
    if kind in {"circle", "ring"}:
        draw.circle((middle, middle), scale, fill=255)
        if kind == "ring":
            draw.circle((middle, middle), scale * 0.55, fill=0)
    else:
        draw.polygon(
            [
                (
                    middle + scale * (x * math.cos(turn) - y * math.sin(turn)),
                    middle + scale * (x * math.sin(turn) + y * math.cos(turn)),
                )
                for x, y in _outline(kind)
            ],
            fill=255,
        )
    return large.reduce(_OVERSAMPLING)


def _outline(kind: str) -> Sequence[tuple[float, float]]:
    """Corners of a straight-edged shape about the origin, y pointing down, radius about one."""
    if kind == "square":
        return [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]
    if kind == "triangle":
        return [(0.0, -1.0), (1.05, 0.85), (-1.05, 0.85)]
    if kind == "cross":
        a, b = 0.33, 1.05
        return [
            *[(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a)],
            *[(a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)],
        ]
    points = [(1.15 if corner % 2 == 0 else 0.48, corner * math.pi / 5) for corner in range(10)]
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for radius, angle in points]


def write_scenes(folder: Path, count: int, seed: int) -> None:
    """Write `count` pictures and `scenes.jsonl` ({id, category, turns, images}) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "scenes.jsonl").open("w", encoding="utf-8") as lines:
        for number in range(count):
            image, scene = draw_scene(seed + number)
            name = f"scene-{seed + number:06d}.png"
            image.save(folder / name)
            turns = conversation(scene, seed + number)
            record = {
                "id": f"scene-{seed + number:06d}",
                "category": turns[0].category,
                "turns": [turn.question for turn in turns],
                "answers": [turn.answer for turn in turns],
                "images": [name],
            }
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of `python -m engine.demo.scenes`."""
    parser = argparse.ArgumentParser(prog="python -m engine.demo.scenes", description=__doc__)
    parser.add_argument("folder", type=Path, help="where pictures and scenes.jsonl go")
    parser.add_argument("--count", type=int, default=50, help="how many scenes")
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of the first scene")
    options = parser.parse_args(arguments)
    write_scenes(options.folder, options.count, options.seed)


if __name__ == "__main__":
    main()
