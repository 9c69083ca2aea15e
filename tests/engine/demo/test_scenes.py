"""Scenes are drawn from a seed, show what they say, and come with questions for benchmarks."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.demo.palette import BACKGROUNDS, COLOURS
from engine.demo.scenes import draw_scene, imagine_scene, main
from engine.demo.wording import KINDS

SEEDS = range(60)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 1_000_000])
def test_a_seed_gives_the_same_picture_again(seed: int) -> None:
    image, scene = draw_scene(seed)
    again, same = draw_scene(seed)
    assert scene == same == imagine_scene(seed)
    assert np.array_equal(np.asarray(image), np.asarray(again))


def test_seeds_give_different_scenes() -> None:
    assert len({imagine_scene(seed) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_count_can_be_asked_for(count: int) -> None:
    assert len(draw_scene(5, count)[1].shapes) == count


def test_no_two_shapes_share_a_place_or_a_name() -> None:
    for seed in SEEDS:
        shapes = imagine_scene(seed).shapes
        assert len({shape.place for shape in shapes}) == len(shapes)
        assert len({shape.name for shape in shapes}) == len(shapes)
        assert list(shapes) == sorted(shapes, key=lambda shape: (shape.row, shape.column))


def test_all_looks_turn_up() -> None:
    scenes = [imagine_scene(seed) for seed in range(300)]
    shapes = [shape for scene in scenes for shape in scene.shapes]
    assert {shape.kind for shape in shapes} == set(KINDS)
    assert {shape.colour for shape in shapes} == set(COLOURS)
    assert {shape.size for shape in shapes} == {"small", "large"}
    assert len({shape.place for shape in shapes}) == 9
    assert {scene.background for scene in scenes} == set(BACKGROUNDS)


def test_the_picture_shows_the_scene() -> None:
    for seed in SEEDS:
        image, scene = draw_scene(seed)
        pixels = np.asarray(image, dtype=np.float32)
        assert image.mode == "RGB"
        assert image.width == image.height
        backdrop = np.median(pixels.reshape(-1, 3), axis=0)
        assert np.abs(backdrop - BACKGROUNDS[scene.background]).max() < 10
        for shape in scene.shapes:
            cell = image.width / 3
            top, left = int(shape.row * cell), int(shape.column * cell)
            around = pixels[top : top + int(cell), left : left + int(cell)].reshape(-1, 3)
            distances = np.linalg.norm(around - COLOURS[shape.colour], axis=1)
            assert (distances < 45).mean() > 0.02, (seed, shape)


def test_the_command_writes_pictures_and_questions(tmp_path: Path) -> None:
    main([str(tmp_path), "--count", "3", "--seed", "40"])
    records = [json.loads(line) for line in (tmp_path / "scenes.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == [f"scene-0000{n}" for n in (40, 41, 42)]
    for record, seed in zip(records, (40, 41, 42), strict=True):
        assert set(record) == {"id", "category", "turns", "answers", "images"}
        assert len(record["turns"]) == len(record["answers"]) == 2
        with Image.open(tmp_path / record["images"][0]) as written:
            assert np.array_equal(np.asarray(written), np.asarray(draw_scene(seed)[0]))
