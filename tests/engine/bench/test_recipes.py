"""The usual sets: small files of their shapes, the prompts that lmms-eval asks, and the draw."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from engine.bench.recipes import RECIPES, SAMPLES, SETS, draw, load_set
from engine.bench.workloads import Task
from engine.errors import UsageError
from engine.images import open_picture
from tests.models import picture

LETTER = "Answer with the option's letter from the given choices directly."
PHRASE = "Answer the question using a single word or phrase."
Row = dict[str, Any]


def shot(number: int = 0) -> Row:
    """A picture as the Hub stores it, `10 + number` pixels wide."""
    buffer = io.BytesIO()
    picture(10 + number, 8, seed=number).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


SHAPES: dict[str, tuple[str, Row, str, str]] = {
    "scienceqa": (
        "ScienceQA-IMG/test-00000-of-00001.parquet",
        {
            "image": shot(),
            "question": "Which?",
            "choices": ["ash", "elm"],
            "answer": 1,
            "hint": "Trees.",
            "subject": "natural science",
        },
        f"Context: Trees.\nWhich?\nA. ash\nB. elm\n{LETTER}",
        "natural science",
    ),
    "mmvet": (
        "data/test-00000-of-00001.parquet",
        {
            "question_id": "v1_0",
            "image": shot(),
            "question": "What is x?",
            "capability": "ocr,math",
        },
        "First please perform reasoning, and think step by step to provide best answer to the "
        "following question: \n\nWhat is x?",
        "ocr,math",
    ),
    "textvqa": (
        "data/validation-00000-of-00003.parquet",
        {"question_id": 7, "image_id": "a", "question": "what is the Brand?", "image": shot()},
        f"What is the brand?\n{PHRASE}",
        "textvqa",
    ),
    "mme": (
        "data/test-00000-of-00001.parquet",
        {
            "question_id": "OCR/1.png",
            "image": shot(),
            "question": "Is it a cat? Please answer yes or no.",
            "category": "OCR",
        },
        f"Is it a cat?\n{PHRASE}",
        "OCR",
    ),
    "coco": (
        "data/val-00000-of-00001.parquet",
        {"question_id": "000000179765.jpg", "image": shot(), "question": "Please caption."},
        "Provide a one-sentence caption for the provided image.",
        "coco",
    ),
    "vizwiz": (
        "data/val-00000-of-00005.parquet",
        {"question_id": "1.jpg", "image": shot(), "question": "what's this?", "category": "other"},
        "What's this?\nWhen the provided information is insufficient, respond with 'Unanswerable'."
        f"\n{PHRASE}",
        "other",
    ),
    "seedbench": (
        "data/test-00000-of-00056.parquet",
        {
            "question_id": "101669",
            "image": [shot(0), shot(1)],
            "question": "How many?",
            **{f"choice_{letter}": letter.upper() * 2 for letter in "abcd"},
            "data_type": "video",
        },
        f"How many?\nA. AA\nB. BB\nC. CC\nD. DD\n{LETTER}",
        "video",
    ),
}
"""Of each set a file's name, a row, and what becomes of it: prompt and category."""


def stored(folder: Path, name: str, *rows: Row) -> Path:
    """A Parquet file of these rows."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def load(name: str, folder: Path | None, **options: int) -> list[Task]:
    return load_set(name, folder, pytest.fail, **options)


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_of_each_set_is_asked_as_lmms_eval_asks_it(tmp_path: Path, name: str) -> None:
    file, row, prompt, category = SHAPES[name]
    stored(tmp_path, file, row)
    [task] = load(name, tmp_path)
    [turn] = task.turns
    assert (turn.text, task.category) == (prompt, category)
    assert task.id == f"{name}/{row.get('question_id', 0)}"
    shots = row["image"] if isinstance(row["image"], list) else [row["image"]]
    assert [open_picture(source).image.width for source in turn.images] == [
        10 + number for number in range(len(shots))
    ]


def test_gqa_s_pictures_are_in_files_of_their_own(tmp_path: Path) -> None:
    pictures = [{"id": f"n{i}", "image": shot(i)} for i in range(3)]
    asked = [
        {"id": "20", "imageId": "n2", "question": "Is it?", "types": {"structural": "verify"}},
        {"id": "21", "imageId": "n0", "question": "Who?", "types": {"structural": "query"}},
    ]
    stored(tmp_path, "testdev_balanced_images/testdev-00000-of-00001.parquet", *pictures)
    stored(tmp_path, "testdev_balanced_instructions/testdev-00000-of-00001.parquet", *asked)
    stored(tmp_path, "train_balanced_instructions/testdev-00000-of-00001.parquet", *asked)
    tasks = {task.id: task for task in load("gqa", tmp_path)}
    assert set(tasks) == {"gqa/20", "gqa/21"}
    assert tasks["gqa/20"].category == "verify"
    [source] = tasks["gqa/20"].turns[0].images
    assert open_picture(source).image.width == 12


def test_mmspec_is_a_file_of_prompts(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    (folder / "images").mkdir(parents=True)
    picture(8, 8, seed=0).save(folder / "images" / "m.png")
    rows = [
        {"id": f"mmspec_{i}", "image": "m.png", "turns": ["A?", "B?"], "topic": "text vqa"}
        for i in range(5)
    ]
    (folder / "mmspec.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tasks = load("mmspec", tmp_path, samples=3)
    assert load("mmspec", folder, samples=3) == tasks
    assert [task.id for task in tasks] == [f"mmspec_{i}" for i in draw(5, 3, 42)]
    assert {(task.category, len(task.turns)) for task in tasks} == {("text vqa", 2)}
    with pytest.raises(UsageError, match="git clone"):
        load("mmspec", None)


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_rows_may_be_json_with_pictures_beside_them(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "images/b.png"):
        picture(8, 8, seed=0).save(tmp_path / name)
    rows = [
        {"question_id": "1", "question": "One?", "image": "a.png"},
        {"question_id": "2", "question": "Two?", "image": {"path": "b.png", "bytes": None}},
        {"question_id": "3", "question": "Three?", "image": "https://example.org/c.png"},
    ]
    lines = "\n".join(map(json.dumps, rows))
    file = tmp_path / f"test{suffix}"
    file.write_text(json.dumps(rows) if suffix == ".json" else lines)
    (tmp_path / "test_other.txt").touch()
    (tmp_path / "testdev.jsonl").write_text("not of this split")
    sources = {task.id: task.turns[0].images for task in load("mme", tmp_path)}
    assert sources == {
        "mme/1": (str(tmp_path / "a.png"),),
        "mme/2": (str(tmp_path / "images/b.png"),),
        "mme/3": ("https://example.org/c.png",),
    }


def test_a_hundred_rows_are_drawn_and_always_the_same(tmp_path: Path) -> None:
    rows = [{"question_id": i, "question": f"{i}?", "image": shot()} for i in range(120)]
    stored(tmp_path, "data/test-00000-of-00002.parquet", *rows[:70])
    stored(tmp_path, "data/test-00001-of-00002.parquet", *rows[70:])
    tasks = load("mme", tmp_path)
    assert len({task.id for task in tasks}) == SAMPLES
    assert [task.turns[0].text.partition("?")[0] for task in tasks] == [
        task.id.removeprefix("mme/") for task in tasks
    ]
    assert load("mme", tmp_path, samples=5) == tasks[:5]
    assert load("mme", tmp_path, samples=5, seed=1) != tasks[:5]


def test_the_draw_is_the_same_in_every_python() -> None:
    assert draw(1000, 5, 42) == [394, 124, 368, 684, 290]
    assert sorted(draw(4, 100, 42)) == [0, 1, 2, 3]


def test_sets_come_from_the_hub_with_the_package_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(hub: str, config: str | None, split: str) -> Any:
        asked.append((hub, config, split))
        if config == "testdev_balanced_images":
            rows = [{"id": "n1", "image": shot(1)}, {"id": "n2", "image": shot(2)}]
            made = datasets.Dataset.from_list(rows)
            return made.cast_column("image", datasets.Image())
        return datasets.Dataset.from_list([{"id": "7", "imageId": "n2", "question": "Who?"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    [task] = load("gqa", None)
    assert (task.id, task.category) == ("gqa/7", "gqa")
    assert open_picture(task.turns[0].images[0]).image.width == 12
    assert asked == [
        ("lmms-lab-encoder/GQA", "testdev_balanced_instructions", "testdev"),
        ("lmms-lab-encoder/GQA", "testdev_balanced_images", "testdev"),
    ]


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UsageError, match=r"\(ConnectionError: no route\); download it elsewhere"):
        load("mme", None)


def test_a_missing_package_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, "test.parquet", {"question": "a"})
    for name in ("datasets", "pyarrow.dataset"):
        monkeypatch.setitem(sys.modules, name, None)
    for folder, package in ((None, "datasets"), (tmp_path, "pyarrow")):
        with pytest.raises(UsageError, match=rf"needs {package}: pip install 'recap-vlm\[bench\]'"):
            load("mme", folder)


def _nothing(folder: Path) -> None:
    pass


def _broken_parquet(folder: Path) -> None:
    (folder / "test.parquet").write_bytes(b"PAR1")


def _broken_json(folder: Path) -> None:
    (folder / "test.jsonl").write_text("{")


def _no_objects(folder: Path) -> None:
    (folder / "test.json").write_text('{"images": []}')


def _other_fields(folder: Path) -> None:
    (folder / "test.jsonl").write_text('{"image": "a.png", "text": "Who?"}')


def _no_picture(folder: Path) -> None:
    (folder / "test.jsonl").write_text('{"image": [], "question": "Who?"}')


def _odd_picture(folder: Path) -> None:
    (folder / "test.jsonl").write_text('{"image": 3, "question": "Who?"}')


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (
            _nothing,
            r"no test\*\.parquet, \.jsonl or \.json in it; hf download lmms-lab-encoder/MME",
        ),
        (_broken_parquet, "cannot be read as Parquet"),
        (_broken_json, "cannot be read as JSON"),
        (_no_objects, "objects are wanted"),
        (_other_fields, "mme row 0: nothing in question; it has image, text"),
        (_no_picture, "mme row 0: no picture in image"),
        (_odd_picture, "not a picture, a path or a URL: 3"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, prepare: Callable[[Path], None], reason: str
) -> None:
    prepare(tmp_path)
    with pytest.raises(UsageError, match=reason):
        load("mme", tmp_path)


def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    assert set(SHAPES) | {"gqa", "mmspec"} == set(SETS)
    assert {"gqa", *SHAPES} == set(RECIPES)
    with pytest.raises(UsageError, match="no set 'vqa'; choose from scienceqa, mmvet"):
        load("vqa", None)
