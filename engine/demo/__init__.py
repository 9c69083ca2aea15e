"""The built-in demo model: where it lies, and which pictures it was made for. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from engine.demo.palette import BACKGROUNDS, COLOURS

MODEL_DIR: Final = Path(__file__).parent / "model"
"""The folder that transformers' `from_pretrained` loads."""

_SIDE = 84
_NEAR = 56.0  # Euclidean distance in 8-bit RGB that jitter, noise and JPEG may add up to
_FLAT = 24.0  # how far a background pixel may be from the background's median colour


def looks_like_scene(image: Image.Image) -> bool:
    """Whether a picture is plausibly one of `engine.demo.scenes`: few shapes, plain background.

    Args:
        image: any mode; compared by colour after scaling to 84 x 84 pixels.

    Returns:
        True where most of the picture is one of the five background colours, flat, and nearly all
        of the rest is in the eight colours of the shapes.
    """
    if max(image.size) > 1.2 * min(image.size):
        return False
    small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, dtype=np.float32).reshape(-1, 3)
    backdrop = np.median(pixels, axis=0)
    if _distances(backdrop[None], BACKGROUNDS).min() > _NEAR:
        return False
    rest = pixels[np.linalg.norm(pixels - backdrop, axis=1) > _FLAT]
    if not 0.005 < len(rest) / len(pixels) < 0.5:
        return False
    # Edges are mixtures of two colours; small shapes are mostly edge.
    in_colour = _distances(rest, COLOURS).min(axis=1) < _NEAR
    return bool(in_colour.mean() > 0.4)


def _distances(pixels: np.ndarray, palette: dict[str, tuple[int, int, int]]) -> np.ndarray:
    """(pixels, 3) float32 -> (pixels, colours): distances to the palette's colours."""
    colours = np.array(list(palette.values()), dtype=np.float32)
    distances: np.ndarray = np.linalg.norm(pixels[:, None] - colours[None], axis=2)
    return distances
