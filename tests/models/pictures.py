"""Tiny pictures, made by code."""

import torch
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """An RGB picture of coarse random colours: no two seeds or sizes look the same to a model."""
    generator = torch.Generator().manual_seed(1000 * seed + width)
    pixels = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8, generator=generator)
    coarse = Image.frombytes("RGB", (7, 5), bytes(pixels.flatten().tolist()))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


ODD_SIZES = ((30, 28), (37, 91), (161, 40), (113, 112), (57, 57))
