"""Training batches: conversations about scenes as token ids, labels, positions and pixels.

A batch is a function of the settings' seed and the step, so a resumed training sees what an
uninterrupted one would have seen. Pictures take the way they take at use: the processor's bicubic
resize to SIDE x SIDE.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2Tokenizer

from engine.demo.build import IMAGE_TOKENS, SIDE, SYSTEM
from engine.demo.palette import COLOURS
from engine.demo.questions import Turn, conversation, questions, small_talk
from engine.demo.scenes import SIZES, draw_scene, imagine_scene
from engine.demo.wording import KINDS, Scene, counted

HELD_OUT_SEED = 1_000_000  # scenes from here on are never trained on
_IGNORED = -100
_GRID = 3  # merged patches a side
_ENOUGH = 176  # tokens: a turn that would go beyond is left out, so that little is padding
_SYSTEMS = (
    *("You are a helpful assistant.", "You are a careful observer.", "Answer briefly.", ""),
    *("You describe pictures.", "Be precise.", "You are a friendly teacher. Answer truthfully."),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's data.

    Attributes:
        input_ids: (batch, length) int64, padded on the right.
        labels: (batch, length) int64: the next token where it is the assistant's, else -100.
        position_ids: (3, batch, length) int64: M-RoPE positions (time, height, width).
        pixel_values: (pictures * 36, 1176) float32: the image processor's patches.
        image_grid_thw: (pictures, 3) int64.
        cells: (pictures, 9, 3) int64: kind, colour and size in each place, 0 where it is empty.
        named: (batch, length, 10) float32: where a token ends a shape's name, a distribution over
            the places of the shapes so called, or all on the tenth if there are none; else zeros.
        due: (batch, length, 10) float32: the same where the next token is a size, a colour or a
            kind in a shape's name that the assistant says.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    pixel_values: torch.Tensor
    image_grid_thw: torch.Tensor
    cells: torch.Tensor
    named: torch.Tensor
    due: torch.Tensor


_Row = tuple[list[int], list[int]]  # token ids and labels


class Conversations:
    """Draws scenes and makes batches of conversations about them.

    Scenes are drawn once and kept as 21 kB of pixels; the pool they are chosen from grows by
    `fresh` scenes a step.
    """

    def __init__(self, tokenizer: Qwen2Tokenizer, seed: int, pool: int = 2000, fresh: int = 8):
        self._tokenizer = tokenizer
        self._seed = seed
        self._pool, self._fresh = pool, fresh
        self._drawn: dict[int, tuple[np.ndarray, Scene]] = {}
        self._encoded: dict[str, list[int]] = {}
        self._words = _words(tokenizer)
        self._image_token: int = tokenizer.get_vocab()["<|image_pad|>"]

    def batch(self, step: int, size: int, most: int = 5) -> Batch:
        """The `size` conversations of a step, about scenes of at most `most` shapes."""
        rng = random.Random(f"{self._seed}-{step}")
        rows: list[_Row] = []
        pictures: list[np.ndarray] = []
        scenes: list[Scene] = []
        for _ in range(size):
            number = rng.randrange(self._pool + self._fresh * step)
            while len(imagine_scene(number).shapes) > most:
                number = rng.randrange(self._pool + self._fresh * step)
            pixels, scene = self._scene(number)
            seen = rng.random() > 0.02
            system = SYSTEM if rng.random() < 0.8 else rng.choice(_SYSTEMS)
            rows.append(self._encode(_turns(scene, seen, rng), system, seen))
            if seen:
                pictures.append(pixels)
                scenes.append(scene)
        return self._pad(rows, pictures, scenes)

    def _scene(self, seed: int) -> tuple[np.ndarray, Scene]:
        if seed not in self._drawn:
            image, scene = draw_scene(seed)
            resized = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            self._drawn[seed] = (np.asarray(resized), scene)
        return self._drawn[seed]

    def _ids(self, text: str) -> list[int]:
        if text not in self._encoded:
            self._encoded[text] = self._tokenizer.encode(text)
        return self._encoded[text]

    def _encode(self, turns: Sequence[Turn], system: str, seen: bool) -> _Row:
        """A conversation in the chat template's form."""
        start = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
        ids = [*self._ids(start)]
        if seen:
            ids += self._ids("<|vision_start|>")
            ids += [self._image_token] * IMAGE_TOKENS
            ids += self._ids("<|vision_end|>")
        spoken = [False] * len(ids)
        for number, turn in enumerate(turns):
            asked = [
                *(self._ids("<|im_start|>user\n") if number else ()),
                *self._ids(turn.question),
                *self._ids("<|im_end|>\n<|im_start|>assistant\n"),
            ]
            answered = self._ids(f"{turn.answer}<|im_end|>")
            after = self._ids("\n")
            if number and len(ids) + len(asked) + len(answered) > _ENOUGH:
                break
            ids += [*asked, *answered, *after]
            spoken += [False] * len(asked) + [True] * len(answered) + [False] * len(after)
        labels = [
            token if is_spoken else _IGNORED
            for token, is_spoken in zip(ids[1:], spoken[1:], strict=True)
        ]
        return ids, [*labels, _IGNORED]

    def _pad(
        self,
        rows: Sequence[_Row],
        pictures: Sequence[np.ndarray],
        scenes: Sequence[Scene],
    ) -> Batch:
        ids, next_ids = zip(*rows, strict=True)
        input_ids = _stacked(ids, self._ids("<|endoftext|>")[0])
        is_image = input_ids == self._image_token
        labels = _stacked(next_ids, _IGNORED)
        named, due = self._named(input_ids, labels, is_image, scenes)
        return Batch(
            input_ids=input_ids,
            labels=labels,
            position_ids=rope_positions(is_image),
            pixel_values=patches(np.stack(pictures)),
            image_grid_thw=torch.tensor([[1, 2 * _GRID, 2 * _GRID]] * len(pictures)),
            cells=torch.tensor([cells_of(scene) for scene in scenes]),
            named=named,
            due=due,
        )

    def _named(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        is_image: torch.Tensor,
        scenes: Sequence[Scene],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `Batch.named` and `Batch.due` say."""
        named = torch.zeros(*input_ids.shape, IMAGE_TOKENS + 1)
        due = torch.zeros_like(named)
        for row, scene in zip(is_image.any(1).nonzero().flatten().tolist(), scenes, strict=True):
            words = [self._words.get(token, "") for token in input_ids[row].tolist()]
            for at, (before, word) in enumerate(pairwise(words), start=1):
                if word in KINDS or (word == "shape" and before in COLOURS):
                    named[row, at] = _whereabouts(scene, before, word)
                    start = at - (before in COLOURS)
                    start -= words[start - 1] in SIZES
                    if labels[row, at - 1] != _IGNORED:
                        due[row, start - 1 : at] = named[row, at]
        return named, due


def _whereabouts(scene: Scene, before: str, word: str) -> torch.Tensor:
    """Where the shapes are that `word`, after the word `before`, is the name of: (10,) float32."""
    found = torch.zeros(IMAGE_TOKENS + 1)
    for shape in scene.shapes:
        if word in {shape.kind, "shape"} and (before == shape.colour or before not in COLOURS):
            found[_GRID * shape.row + shape.column] = 1
    if not found.any():
        found[-1] = 1
    return found / found.sum()


def _words(tokenizer: Qwen2Tokenizer) -> dict[int, str]:
    """A name's words, singular and in lower case, by the one token that spells them, if any."""
    words = {}
    for word in (*KINDS, *COLOURS, *SIZES, "shape"):
        plural = counted(2, word).removeprefix("two ")
        for written in (word, plural, word.capitalize()):
            for text in (written, f" {written}"):
                if len(ids := tokenizer.encode(text)) == 1:
                    words[ids[0]] = word
    return words


def _stacked(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    """(rows, longest) int64."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (length - len(row))] for row in rows])


def cells_of(scene: Scene) -> list[list[int]]:
    """Nine times kind, colour and size as numbers from one, zeros where a place is empty."""
    cells = [[0, 0, 0] for _ in range(_GRID * _GRID)]
    for shape in scene.shapes:
        cells[_GRID * shape.row + shape.column] = [
            1 + KINDS.index(shape.kind),
            1 + tuple(COLOURS).index(shape.colour),
            1 + tuple(SIZES).index(shape.size),
        ]
    return cells


def _turns(scene: Scene, seen: bool, rng: random.Random) -> list[Turn]:
    """More than fit: pairs of short questions, now and then after a description or small talk.

    Without a picture it is small talk alone.
    """
    seed, chance = rng.getrandbits(32), rng.random()
    if not seen:
        return small_talk(scene, seed)[:1]
    turns = small_talk(scene, seed) if chance < 0.02 else []
    if chance > 0.75:
        turns = conversation(scene, seed, 2)
    for _ in range(6):
        turns += questions(scene, rng.getrandbits(32), 2)
    return turns


def rope_positions(is_image: torch.Tensor) -> torch.Tensor:
    """M-RoPE positions for rows with at most one 3 x 3 picture each.

    Args:
        is_image: (batch, length) bool: which tokens are image placeholders.

    Returns:
        (3, batch, length) int64, as `Qwen2_5_VLModel.get_rope_index` gives them.
    """
    number = is_image.cumsum(1)  # 1 ... 9 within the picture
    text = torch.arange(is_image.shape[1]) - (number - number.clamp(max=_GRID))
    start = torch.arange(is_image.shape[1]) - (number - 1)
    cell = number - 1
    axes = (start, start + cell // _GRID, start + cell % _GRID)
    return torch.stack([torch.where(is_image, axis, text) for axis in axes])


def patches(pictures: np.ndarray) -> torch.Tensor:
    """Pixels as the image processor hands them to the model.

    Args:
        pictures: (pictures, SIDE, SIDE, 3) uint8.

    Returns:
        (pictures * 36, 1176) float32, normalised, in the order of merged patches.
    """
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    pixels = (torch.tensor(pictures).float() / 255 - mean) / std
    cells = pixels.reshape(-1, _GRID, 2, 14, _GRID, 2, 14, 3)
    ordered = cells.permute(0, 1, 4, 2, 5, 7, 3, 6)  # picture, cell, patch in cell, channel, y, x
    twice = ordered.unsqueeze(6).expand(*ordered.shape[:6], 2, 14, 14)
    return twice.reshape(-1, 3 * 2 * 14 * 14)
