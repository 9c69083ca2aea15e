"""The trained weights: right about ten scenes, word for word, because they look at the picture.

The ten are the first held-out scenes that these weights describe without a fault; how often they
are right on all held-out scenes is in the model's card.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from engine.demo import MODEL_DIR
from engine.demo.build import new_tokenizer
from engine.demo.evaluate import Answerer, attributes
from engine.demo.palette import COLOURS
from engine.demo.scenes import draw_scene, imagine_scene, paint_scene
from engine.demo.wording import KINDS, Scene, Shape
from engine.events import Finished
from engine.loading import load_model
from engine.prompts import Message
from engine.session import Request, Session, SessionOptions

EXPECTED = {
    1_000_000: (
        "This picture shows three shapes on a white background. "
        "In the top left corner there is a small purple star. "
        "On the left there is a large purple circle. "
        "At the bottom there is a large black cross. "
        "Two are large and one is small."
    ),
    1_000_001: (
        "This picture shows one shape on a grey background. "
        "On the right there is a large black ring. "
        "It is the only shape in the picture."
    ),
    1_000_002: (
        "This picture shows five shapes on a white background. "
        "In the top left corner there is a small brown ring. "
        "On the left there is a small yellow cross. "
        "In the centre there is a small black star. "
        "In the bottom left corner there is a large green triangle. "
        "At the bottom there is a small blue triangle. "
        "One is large and four are small."
    ),
    1_000_003: (
        "This picture shows two shapes on a light green background. "
        "In the bottom left corner there is a small black circle. "
        "In the bottom right corner there is a small blue triangle. "
        "All of them are small."
    ),
    1_000_004: (
        "This picture shows five shapes on a pink background. "
        "In the top right corner there is a large red ring. "
        "On the left there is a small brown ring. "
        "On the right there is a small black circle. "
        "In the bottom left corner there is a large green star. "
        "At the bottom there is a large yellow cross. "
        "Three are large and two are small."
    ),
    1_000_005: (
        "This picture shows five shapes on a pink background. "
        "In the top left corner there is a large orange triangle. "
        "At the top there is a large orange ring. "
        "In the top right corner there is a small yellow star. "
        "On the left there is a large blue ring. "
        "In the bottom right corner there is a large brown triangle. "
        "Four are large and one is small."
    ),
    1_000_006: (
        "This picture shows five shapes on a grey background. "
        "In the top left corner there is a large black triangle. "
        "At the top there is a small orange triangle. "
        "In the top right corner there is a large orange circle. "
        "In the centre there is a small brown star. "
        "In the bottom right corner there is a small black cross. "
        "Two are large and three are small."
    ),
    1_000_007: (
        "This picture shows two shapes on a grey background. "
        "In the top right corner there is a small purple ring. "
        "On the right there is a small brown circle. "
        "All of them are small."
    ),
    1_000_008: (
        "This picture shows two shapes on a white background. "
        "On the right there is a large orange triangle. "
        "In the bottom right corner there is a small orange circle. "
        "One is large and one is small."
    ),
    1_000_010: (
        "This picture shows one shape on a light green background. "
        "In the bottom left corner there is a large green triangle. "
        "It is the only shape in the picture."
    ),
}


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    torch.manual_seed(0)
    return Answerer(MODEL_DIR)


def _answers(answerer: Answerer, scenes: Sequence[Scene], prompt: str) -> list[str]:
    """Answers about scenes painted alike: same size, places and noise."""
    pictures = [paint_scene(scene, np.random.default_rng(5)) for scene in scenes]
    return answerer.answer(pictures, [[(prompt, None)]] * len(scenes))


def test_ten_scenes_are_described_word_for_word(answerer: Answerer) -> None:
    pictures = [draw_scene(seed)[0] for seed in EXPECTED]
    answers = answerer.answer(pictures, [[("Describe the image.", None)]] * len(pictures))
    assert dict(zip(EXPECTED, answers, strict=True)) == EXPECTED


def test_recap_describes_them_word_for_word_too() -> None:
    with Session(load_model("demo", "cpu"), SessionOptions(model="demo")) as session:
        for seed, text in EXPECTED.items():
            question = Message("user", "Describe the image.", (draw_scene(seed)[0],))
            *_, answer = session.generate(Request([question]))
            assert isinstance(answer, Finished)
            assert (answer.text, answer.finish_reason) == (text, "stop")


def test_what_is_expected_is_what_the_scene_shows() -> None:
    for seed, text in EXPECTED.items():
        assert imagine_scene(seed).description("Describe the image.") == text


SCENE = Scene(
    background="white",
    shapes=(
        Shape("star", "red", "large", row=0, column=0),
        Shape("circle", "blue", "small", row=1, column=1),
        Shape("square", "green", "large", row=2, column=2),
    ),
)


def _with(**changed: str | int) -> Scene:
    """The scene with another shape in the middle."""
    first, middle, last = SCENE.shapes
    return replace(SCENE, shapes=(first, replace(middle, **changed), last))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (_with(colour="black"), ("blue", "black")),
        (_with(kind="cross"), ("circle", "cross")),
        (_with(size="large"), ("small", "large")),
        (replace(SCENE, background="pink"), ("white", "pink")),
    ],
    ids=["colour", "kind", "size", "background"],
)
def test_another_picture_changes_the_answer_at_the_attribute_words(
    answerer: Answerer, other: Scene, words: tuple[str, str]
) -> None:
    prompt = "What is in this image?"
    ours, theirs = (answer.split(" ") for answer in _answers(answerer, (SCENE, other), prompt))
    changed = {
        (mine.strip(".,"), yours.strip(".,"))
        for mine, yours in zip(ours, theirs, strict=True)
        if mine != yours
    }
    assert changed == {words}


def test_a_follow_up_is_understood(answerer: Answerer) -> None:
    picture = paint_scene(SCENE, np.random.default_rng(5))
    asked = "What is in the centre?"
    first = answerer.answer([picture], [[(asked, None)]])[0]
    assert first == "There is a small blue circle in the centre."
    follow_ups = ("What colour is it?", "Where is it?", "Which shape is it?")
    seconds = answerer.answer([picture] * 3, [[(asked, first), (it, None)] for it in follow_ups])
    assert seconds == ["It is blue.", "It is in the centre.", "It is a circle."]


def test_the_picture_in_the_repository_is_a_held_out_scene(answerer: Answerer) -> None:
    drawn, scene = draw_scene(1_006_925)
    with Image.open(MODEL_DIR.parent / "scene.png") as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(drawn))
    assert answerer.answer([drawn], [[("describe", None)]]) == [scene.description("describe")]


def test_all_colours_and_kinds_are_told_apart(answerer: Answerer) -> None:
    looks = [(colour, kind) for colour in COLOURS for kind in KINDS]
    scenes = [_with(colour=colour, kind=kind) for colour, kind in looks]
    answers = _answers(answerer, scenes, "What is in the centre?")
    expected = [f"There is a small {colour} {kind} in the centre." for colour, kind in looks]
    agree = [ours == theirs for ours, theirs in zip(answers, expected, strict=True)]
    assert sum(agree) >= 45


def test_the_folder_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) < 12_000_000


def test_the_tokenizer_is_the_one_that_the_code_builds(answerer: Answerer) -> None:
    saved, built = answerer.tokenizer, new_tokenizer()
    assert saved.get_vocab() == built.get_vocab()
    assert saved.chat_template == built.chat_template


def test_a_description_is_taken_apart_into_attributes() -> None:
    claims = attributes(
        "This picture shows one shape on a light blue background. "
        "In the centre there is a small red ring. It is the only shape in the picture."
    )
    assert claims == {
        ("count", "one"): 1,
        ("background", "light blue"): 1,
        ("position", "in the centre"): 1,
        ("kind", "in the centre", "ring"): 1,
        ("colour", "in the centre", "red"): 1,
        ("size", "in the centre", "small"): 1,
    }


def test_pictures_of_other_shapes_are_answered_too(answerer: Answerer) -> None:
    """Twice as wide as high: six tokens, not nine."""
    wide = Image.new("RGB", (300, 150), "white")
    assert answerer.answer([wide], [[("describe", None)]])[0].endswith(".")
