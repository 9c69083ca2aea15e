"""What is asked in a benchmark: tasks of one or more turns, with sources of pictures.

Knows folders of pictures and scenes of the demo model. Opens no picture that a user names, and
knows no model; forms of prompts' files are known to `prompt_rows`, sets that are distributed with
their pictures to `recipes`.
"""

import base64
import io
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count as naturals
from itertools import islice
from pathlib import Path

from PIL import Image

from engine.bench.prompt_rows import read_rows
from engine.demo.questions import questions
from engine.demo.scenes import draw_scene
from engine.demo.wording import DESCRIPTION_PROMPTS, Scene
from engine.errors import UsageError
from engine.image_sources import printable_name

Tell = Callable[[str], None]
"""Gets what the user should know."""

PICTURES = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib"),
        *(".tif", ".tiff", ".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pnm", ".tga"),
    }
)
"""Ends of names by which a picture in a folder is told."""


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """One user turn.

    Attributes:
        text: what is asked.
        images: sources of the pictures that come with it, as `engine.image_sources` takes them.
    """

    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One conversation to run: each turn is asked once the one before is answered.

    Attributes:
        id: unique in its workload.
        category: what it is averaged with.
        turns: at least one.
    """

    id: str
    category: str
    turns: tuple[TaskTurn, ...]


def read_prompts(path: Path, tell: Tell) -> list[Task]:
    """Read a JSON Lines file of prompts, in its order.

    A row is an object. What is asked is in `turns`, a list of texts, or in `question` or `prompt`;
    the pictures are in `image` or `images`, a source or a list of them. A relative path counts
    from the file's folder or, where nothing is there, from `images` in it (MMSpec). Pictures go
    with the first turn, unless `<image>` in the texts says with which; they stand in front of
    their turn's text. `id`, `question_id`, `doc_id` or `data_id` names a row, its line's number
    otherwise, and `#2` tells the second row of a name. `topic` or `category` says with what a row
    is averaged, the file's name otherwise. `tell` learns which other keys there are.

    Raises:
        UsageError: the file cannot be read, or a line is not such a row; names file, line and key.
    """
    tasks: list[Task] = []
    unused: set[str] = set()
    for row in read_rows(path):
        turns = tuple(TaskTurn(text, images) for text, images in row.turns())
        tasks.append(Task(row.id(), row.category(), turns))
        unused |= row.unused()
    if not tasks:
        raise UsageError(f"{path}: no prompt in it; a line is an object with turns or question")
    if unused:
        tell(f"{path}: not used of its rows: {', '.join(sorted(unused))}")
    return with_unique_ids(tasks)


def with_unique_ids(tasks: Iterable[Task]) -> list[Task]:
    """The same tasks; of those that share an id, the second gets `#2` behind it, and so on."""
    seen: Counter[str] = Counter()
    unique = []
    for task in tasks:
        seen[task.id] += 1
        nth = f"#{seen[task.id]}" if seen[task.id] > 1 else ""
        unique.append(replace(task, id=task.id + nth))
    return unique


def images_folder(folder: Path, prompt: str, tell: Tell) -> list[Task]:
    """The same question about every picture in a folder, in natural order of the names.

    `tell` learns how many files and folders are left out because they are no pictures by name.

    Raises:
        UsageError: no such folder, or no picture in it.
    """
    try:
        names = sorted((path.name for path in folder.iterdir()), key=_natural)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}; name a folder") from error
    pictures = [
        name for name in names if Path(name).suffix.lower() in PICTURES and not name.startswith(".")
    ]
    if not pictures:
        raise UsageError(f"{folder}: no picture in it (.jpg, .png, .webp, ...); name another")
    if left_out := len(names) - len(pictures):
        first = next(name for name in names if name not in pictures)
        rest = f" and {left_out - 1} more" if left_out > 1 else ""
        tell(f"{folder}: not pictures, left out: {printable_name(first)}{rest}")
    category = folder.resolve().name or "images"
    return [Task(name, category, (TaskTurn(prompt, (str(folder / name),)),)) for name in pictures]


def demo_workload(count: int, seed: int) -> list[Task]:
    """Tasks that the built-in demo model was made for; the same arguments give the same tasks.

    Of every six, two describe a scene, one is a question, one a conversation of three turns whose
    last needs the turn before it, and two are a pair: the same prompt about different scenes, back
    to back, which a memory that leaks from one picture to the next would get wrong.

    Args:
        count: how many; where it ends between the two of a pair, there is one of it.
        seed: of the first scene; from `engine.demo.batches.HELD_OUT_SEED` (1,000,000) on none was
            trained on.
    """
    return list(islice(_demo_tasks(seed), count))


def _demo_tasks(first_seed: int) -> Iterator[Task]:
    for seed in naturals(first_seed, 6):
        rng = random.Random(seed)
        scenes = [draw_scene(seed + i) for i in range(6)]
        texts = [
            ("describe", [_description(rng)]),
            ("question", [questions(scenes[1][1], seed, 1)[0].question]),
            ("conversation", [_description(rng), *_follow_up(scenes[2][1], seed)]),
            ("describe", [_description(rng)]),
            *[("pairs", [_description(rng)])] * 2,
        ]
        for i, ((category, asked), (picture, _)) in enumerate(zip(texts, scenes, strict=True)):
            first = TaskTurn(asked[0], (_data_url(picture),))
            turns = (first, *(TaskTurn(text) for text in asked[1:]))
            yield Task(f"scene-{seed + i}", category, turns)


def _description(rng: random.Random) -> str:
    return rng.choice(DESCRIPTION_PROMPTS)


def _follow_up(scene: Scene, seed: int) -> list[str]:
    """A question, and one that only makes sense after it."""
    for attempt in naturals(seed):
        turns = questions(scene, attempt, 2)
        if turns[1].category == "follow-up":
            return [turn.question for turn in turns]
    raise AssertionError("there is always a next seed")


def _data_url(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sorts img2 before img10."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
