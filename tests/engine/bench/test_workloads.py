"""Prompts' files in the forms that people have, folders of pictures, and the demo's own tasks."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.bench.workloads import (
    Task,
    TaskTurn,
    demo_workload,
    images_folder,
    read_prompts,
)
from engine.demo import looks_like_scene
from engine.errors import UsageError
from engine.images import open_picture
from tests.models import picture

URL = "https://example.org/cat.jpg"


@pytest.fixture
def told() -> list[str]:
    """What a reader had to say."""
    return []


def written(folder: Path, *rows: Any, name: str = "prompts.jsonl") -> Path:
    """A prompts' file; a text stands as it is, anything else as JSON."""
    path = folder / name
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def shot(folder: Path, name: str) -> str:
    """A picture's file; returns its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(8, 8, seed=1).save(path)
    return str(path)


def read(path: Path, told: list[str]) -> list[Task]:
    return read_prompts(path, told.append)


def test_rows_of_spec_bench(tmp_path: Path, told: list[str]) -> None:
    path = written(
        tmp_path,
        {"id": "a/1", "category": "qa", "turns": ["Who?"]},
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
    )
    assert read(path, told) == [
        Task("a/1", "qa", (TaskTurn("Who?"),)),
        Task("81", "writing", (TaskTurn("Write."), TaskTurn("Rewrite."))),
    ]
    assert told == []


def test_rows_of_mmspec_have_their_pictures_in_a_folder_of_their_own(
    tmp_path: Path, told: list[str]
) -> None:
    source = shot(tmp_path, "images/mmspec_001.jpg")
    row = {
        "id": "mmspec_001",
        "image": "mmspec_001.jpg",
        "turns": ["What is it?", "Why?"],
        "category": "default",
        "topic": "general vqa",
    }
    turns = (TaskTurn("What is it?", (source,)), TaskTurn("Why?"))
    assert read(written(tmp_path, row), told) == [Task("mmspec_001", "general vqa", turns)]
    assert told == [f"{tmp_path / 'prompts.jsonl'}: not used of its rows: category"]


def test_rows_as_lmms_eval_has_them(tmp_path: Path, told: list[str]) -> None:
    source = shot(tmp_path, "one.png")
    path = written(
        tmp_path,
        {"doc_id": 0, "question": "How many?", "image": "one.png", "answer": "3"},
        {"doc_id": 1, "question": "Which?", "images": [source, URL], "hint": None},
        name="mme.jsonl",
    )
    assert read(path, told) == [
        Task("0", "mme", (TaskTurn("How many?", (source,)),)),
        Task("1", "mme", (TaskTurn("Which?", (source, URL)),)),
    ]
    assert told == [f"{path}: not used of its rows: answer"]


def test_a_marker_says_with_which_turn_a_picture_goes(tmp_path: Path, told: list[str]) -> None:
    urls = [f"{URL}?{i}" for i in range(3)]
    path = written(
        tmp_path,
        {"turns": ["<image>\nThis?", "And <image> or <image>?"], "images": urls},
    )
    [task] = read(path, told)
    assert task.turns == (
        TaskTurn("This?", tuple(urls[:1])),
        TaskTurn("And  or ?", tuple(urls[1:])),
    )


def test_a_row_without_a_name_is_called_by_its_line_and_a_second_one_of_a_name_by_its_count(
    tmp_path: Path, told: list[str]
) -> None:
    path = written(
        tmp_path, {"prompt": "a"}, "", {"prompt": "b"}, *[{"id": "x", "prompt": "c"}] * 2
    )
    assert [task.id for task in read(path, told)] == ["1", "3", "x", "x#2"]


def test_a_picture_that_would_be_dropped_is_told(tmp_path: Path, told: list[str]) -> None:
    read(written(tmp_path, {"prompt": "a", "imgae": URL}), told)
    read(written(tmp_path, {"prompt": "a", "image": URL, "images": [URL]}), told)
    assert [line.rpartition(": ")[2] for line in told] == ["imgae", "image"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes at column 2)"),
        ("[1]", "a row is an object with turns or question"),
        ({"id": 1, "text": "hi"}, "no turns, question or prompt in it, but id, text"),
        ({}, "no turns, question or prompt in it, but nothing"),
        ({"turns": []}, "turns: no turn in it"),
        ({"turns": ["a", 3]}, "turns[1]: a text is wanted, not 3"),
        ({"turns": ["a", " "]}, "turns[1]: nothing is asked"),
        ({"question": "<image>"}, "question: nothing is asked"),
        ({"prompt": "a", "id": [1]}, "id: a text or a number is wanted, not [1]"),
        ({"prompt": "a", "image": 3}, "image: a path or URL is wanted, not 3"),
        ({"prompt": "a", "image": {"bytes": ""}}, 'image: a path or URL is wanted, not {"bytes"'),
        ({"prompt": "a", "images": ["no.png"]}, "images: no file"),
        ({"prompt": "<image> a"}, "1 of <image> in its texts, but 0 pictures"),
    ],
)
def test_a_row_that_is_not_understood_is_named(
    tmp_path: Path, told: list[str], row: Any, reason: str
) -> None:
    path = written(tmp_path, {"prompt": "fine"}, row)
    with pytest.raises(UsageError) as caught:
        read(path, told)
    assert str(caught.value).startswith(f"{path} line 2: {reason}")


def test_a_file_that_holds_no_prompt_is_refused(tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "latin").write_bytes(b'{"prompt": "caf\xe9"}')
    for name, reason in [
        ("none", "No such file"),
        ("latin", "not UTF-8 text"),
        (written(tmp_path, "").name, "no prompt in it"),
    ]:
        with pytest.raises(UsageError, match=reason):
            read(tmp_path / name, told)


def test_a_folder_is_asked_about_in_natural_order(tmp_path: Path, told: list[str]) -> None:
    sources = [shot(tmp_path, name) for name in ("a2.png", "A10.JPG", "b.webp")]
    assert images_folder(tmp_path, "What?", told.append) == [
        Task(Path(source).name, tmp_path.name, (TaskTurn("What?", (source,)),))
        for source in sources
    ]
    assert told == []


def test_what_a_folder_holds_beside_pictures_is_told(tmp_path: Path, told: list[str]) -> None:
    shot(tmp_path, "a.png")
    shot(tmp_path, "more/b.png")
    (tmp_path / ".hidden.png").touch()
    (tmp_path / "notes.txt").touch()
    assert len(images_folder(tmp_path, "What?", told.append)) == 1
    assert told == [f"{tmp_path}: not pictures, left out: .hidden.png and 2 more"]


def test_a_folder_without_pictures_is_refused(tmp_path: Path, told: list[str]) -> None:
    with pytest.raises(UsageError, match="no picture in it"):
        images_folder(tmp_path, "What?", told.append)
    with pytest.raises(UsageError, match="No such file"):
        images_folder(tmp_path / "none", "What?", told.append)


def test_the_demo_is_asked_about_scenes_in_every_way() -> None:
    tasks = demo_workload(12, 1_000_000)
    assert Counter(task.category for task in tasks) == {
        "describe": 4,
        "question": 2,
        "conversation": 2,
        "pairs": 4,
    }
    assert len({task.id for task in tasks}) == 12
    for task in tasks:
        assert [len(turn.images) for turn in task.turns] == [1, 0, 0][: len(task.turns)]
        assert looks_like_scene(open_picture(task.turns[0].images[0]).image)
        assert (len(task.turns) == 3) is (task.category == "conversation")


def test_a_pair_asks_the_same_about_two_pictures_back_to_back() -> None:
    first, second = demo_workload(6, 7)[-2:]
    assert (first.category, second.category) == ("pairs", "pairs")
    assert first.turns[0].text == second.turns[0].text
    assert first.turns[0].images != second.turns[0].images


def test_the_demo_s_tasks_follow_from_the_seed() -> None:
    assert demo_workload(3, 5) == demo_workload(6, 5)[:3]
    assert demo_workload(3, 5) != demo_workload(3, 11)
