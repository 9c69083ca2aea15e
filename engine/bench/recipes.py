"""The usual vision sets, each as one recipe: where it is, what of its rows is asked, and how.

Prompts are those of lmms-eval's tasks (github.com/EvolvingLMMs-Lab/lmms-eval, August 2026). Of each
set `SAMPLES` rows are drawn with `SEED`, and answers end after `MAX_NEW_TOKENS`, so that two
machines that run a recipe run the same. Knows prompts; how sets are stored is known to `set_rows`.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NoReturn

from engine.bench.set_rows import Row, Rows, hub_rows, image_sources, local_rows
from engine.bench.workloads import Task, TaskTurn, Tell, read_prompts, with_unique_ids
from engine.errors import UsageError

SAMPLES = 100
SEED = 42
MAX_NEW_TOKENS = 1024

LETTER = "\nAnswer with the option's letter from the given choices directly."
PHRASE = "\nAnswer the question using a single word or phrase."


@dataclass(frozen=True, slots=True)
class Recipe:
    """One set.

    Attributes:
        title: its name as its authors write it.
        hub: its id on the Hugging Face Hub.
        config, split: which part of it; no config where it has but one.
        question: the field with the question.
        asks: what is asked of every picture instead, where rows have no question of their own.
        hint: a field with context for the question.
        options: fields with the choices: one that has a list, or one a choice.
        image: the field with the picture or pictures.
        pictures: where pictures are in a config of their own: that config, the field with a
            picture's id there, and the field with the id here.
        id, category: fields with a row's name and kind, where it has them: its number and the
            set's name otherwise. A dot leads into a field.
        before, after: the rest of the prompt.
        without: words of the questions that are left out.
        capitalised: whether the question is written as Python's `capitalize` writes it.
    """

    title: str
    hub: str
    split: str
    config: str | None = None
    question: str = "question"
    asks: str = ""
    hint: str | None = None
    options: tuple[str, ...] = ()
    image: str = "image"
    pictures: tuple[str, str, str] | None = None
    id: str | None = "question_id"
    category: str | None = None
    before: str = ""
    after: str = ""
    without: str = ""
    capitalised: bool = False


RECIPES: Mapping[str, Recipe] = {
    "scienceqa": Recipe(
        "ScienceQA, questions with a picture",
        "lmms-lab-encoder/ScienceQA",
        "test",
        config="ScienceQA-IMG",
        hint="hint",
        options=("choices",),
        id=None,
        category="subject",
        after=LETTER,
    ),
    "mmvet": Recipe(
        "MM-Vet",
        "lmms-lab-encoder/MMVet",
        "test",
        category="capability",
        before="First please perform reasoning, and think step by step to provide best answer to "
        "the following question: \n\n",
    ),
    "textvqa": Recipe(
        "TextVQA", "lmms-lab-encoder/textvqa", "validation", after=PHRASE, capitalised=True
    ),
    "mme": Recipe(
        "MME",
        "lmms-lab-encoder/MME",
        "test",
        category="category",
        after=PHRASE,
        without=" Please answer yes or no.",
    ),
    "coco": Recipe(
        "COCO Captions 2017",
        "lmms-lab-encoder/COCO-Caption2017",
        "val",
        asks="Provide a one-sentence caption for the provided image.",
    ),
    "vizwiz": Recipe(
        "VizWiz-VQA",
        "lmms-lab-encoder/VizWiz-VQA",
        "val",
        category="category",
        after="\nWhen the provided information is insufficient, respond with 'Unanswerable'."
        + PHRASE,
        capitalised=True,
    ),
    "gqa": Recipe(
        "GQA",
        "lmms-lab-encoder/GQA",
        "testdev",
        config="testdev_balanced_instructions",
        pictures=("testdev_balanced_images", "id", "imageId"),
        id="id",
        category="types.structural",
        after=PHRASE,
    ),
    "seedbench": Recipe(
        "SEED-Bench",
        "lmms-lab-encoder/SEED-Bench",
        "test",
        options=("choice_a", "choice_b", "choice_c", "choice_d"),
        category="data_type",
        after=LETTER,
    ),
}
"""By the name under which a set is asked for."""

MMSPEC = "mmspec"
"""The set that is a file of prompts (github.com/killthefullmoon/MMSpec), and has no recipe."""

SETS = (*RECIPES, MMSPEC)


def load_set(
    name: str, folder: Path | None, tell: Tell, samples: int = SAMPLES, seed: int = SEED
) -> list[Task]:
    """Draw tasks from a set, in the order in which they were drawn.

    Args:
        name: one of `SETS`.
        folder: where its files lie, laid out as on the Hub; None has the package `datasets`
            download them.
        tell: learns what the user should know.
        samples: how many, or as many as there are.

    Raises:
        UsageError: no such set, it is not there, its rows have other fields, or a package is
            missing that reads it.
    """
    if name == MMSPEC:
        tasks = read_prompts(_mmspec(folder), tell)
        return [tasks[i] for i in draw(len(tasks), samples, seed)]
    if name not in RECIPES:
        raise UsageError(f"no set {name!r}; choose from {', '.join(SETS)}")
    recipe = RECIPES[name]
    stored = _stored(recipe, recipe.config, folder)
    drawn = draw(len(stored), samples, seed)
    rows = [_Row(name, *row) for row in zip(drawn, stored.take(drawn), strict=True)]
    if recipe.pictures is not None:
        rows = _with_pictures(recipe, rows, folder)
    return with_unique_ids(_task(recipe, row, stored.folder) for row in rows)


def draw(rows: int, samples: int, seed: int) -> list[int]:
    """Indices of `samples` of so many rows, in random order, the same in every Python."""
    chance = random.Random(seed)
    ranks = [chance.random() for _ in range(rows)]
    return sorted(range(rows), key=ranks.__getitem__)[:samples]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a set, and its number there."""

    set: str
    number: int
    fields: Row

    def find(self, path: str | None) -> Any:
        """What is in a field; a dot leads into one. None where there is no such field."""
        value: Any = self.fields
        for key in path.split(".") if path else ("",):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def get(self, path: str) -> Any:
        """What must be in a field."""
        value = self.find(path)
        if value is None:
            self.refuse(f"nothing in {path}; it has {', '.join(self.fields)}")
        return value

    def refuse(self, reason: str) -> NoReturn:
        raise UsageError(f"{self.set} row {self.number}: {reason}")


def _stored(recipe: Recipe, config: str | None, folder: Path | None) -> Rows:
    if folder is None:
        return hub_rows(recipe.hub, config, recipe.split)
    return local_rows(folder, config, recipe.split, recipe.hub)


def _with_pictures(recipe: Recipe, rows: Sequence[_Row], folder: Path | None) -> list[_Row]:
    """Rows joined with the pictures that are in a config of their own."""
    assert recipe.pictures is not None
    config, theirs, ours = recipe.pictures
    stored = _stored(recipe, config, folder).where(theirs, {row.get(ours) for row in rows})
    pictures = {found[theirs]: found.get(recipe.image) for found in stored}
    return [
        replace(row, fields={**row.fields, recipe.image: pictures.get(row.get(ours))})
        for row in rows
    ]


def _task(recipe: Recipe, row: _Row, folder: Path | None) -> Task:
    sources = image_sources(row.get(recipe.image), folder)
    if not sources:
        row.refuse(f"no picture in {recipe.image}")
    own_id, category = row.find(recipe.id), row.find(recipe.category)
    return Task(
        id=f"{row.set}/{row.number if own_id is None else own_id}",
        category=row.set if category is None else str(category),
        turns=(TaskTurn(_prompt(recipe, row), sources),),
    )


def _prompt(recipe: Recipe, row: _Row) -> str:
    if recipe.asks:
        return recipe.asks
    question = str(row.get(recipe.question)).strip()
    if recipe.without:
        question = question.replace(recipe.without, "")
    if recipe.capitalised:
        question = question.capitalize()
    hint = row.find(recipe.hint)
    context = f"Context: {hint}\n" if hint else ""
    return f"{recipe.before}{context}{question}{_options(recipe, row)}{recipe.after}"


def _options(recipe: Recipe, row: _Row) -> str:
    values = [row.get(name) for name in recipe.options]
    choices = values[0] if len(values) == 1 else values
    return "".join(
        f"\n{letter}. {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)
    )


def _mmspec(folder: Path | None) -> Path:
    """The file of prompts in its folder, or in that of its full split."""
    if folder is None:
        raise UsageError(
            "mmspec is not on the Hub: git clone https://github.com/killthefullmoon/MMSpec, and "
            "name the folder dataset/MMSpec/test in it"
        )
    places = (folder / "mmspec.jsonl", folder / "test" / "mmspec.jsonl")
    return next((place for place in places if place.is_file()), places[0])
