"""What is said about a scene follows from the scene and the prompt's wording alone."""

import pytest

from engine.demo.questions import conversation, questions, small_talk
from engine.demo.scenes import imagine_scene
from engine.demo.wording import Scene, Shape

SCENE = Scene(
    background="light blue",
    shapes=(
        Shape("star", "red", "large", row=0, column=0),
        Shape("circle", "orange", "small", row=1, column=2),
        Shape("cross", "red", "small", row=2, column=0),
    ),
)
LONE = Scene(background="white", shapes=(Shape("ring", "black", "small", row=1, column=1),))


def test_a_plain_description() -> None:
    assert SCENE.description("Describe the image.") == (
        "This picture shows three shapes on a light blue background. "
        "In the top left corner there is a large red star. "
        "On the right there is a small orange circle. "
        "In the bottom left corner there is a small red cross. "
        "One is large and two are small."
    )


def test_a_detailed_description_says_how_each_shape_lies_to_the_one_before() -> None:
    assert SCENE.description("Describe it in detail") == (
        "The picture has a light blue background and shows three shapes. "
        "The first is a large red star in the top left corner. "
        "The second is a small orange circle on the right, "
        "below and to the right of the red star. "
        "The third is a small red cross in the bottom left corner, "
        "below and to the left of the orange circle. "
        "One is large and two are small. There is nothing else in the picture."
    )


def test_a_list() -> None:
    assert SCENE.description("What is in this image?") == (
        "I see three shapes: a large red star, a small orange circle and a small red cross. "
        "The background is light blue."
    )


def test_a_brief_description() -> None:
    assert SCENE.description("describe it briefly") == (
        "Three shapes on a light blue background: a red star, an orange circle and a red cross."
    )


@pytest.mark.parametrize("prompt", ["describe", "DESCRIBE!", "Please describe the image"])
def test_case_and_punctuation_do_not_change_a_description(prompt: str) -> None:
    assert SCENE.description(prompt) == SCENE.description("Describe")


@pytest.mark.parametrize("prompt", ["Describe", "in detail", "what is this?", "in short?"])
def test_a_lone_shape_is_described_too(prompt: str) -> None:
    assert "black ring" in LONE.description(prompt)


def test_each_question_has_one_answer() -> None:
    """Over many scenes no question about one scene ever gets two different answers."""
    for seed in range(40):
        scene = imagine_scene(seed)
        answers: dict[str, str] = {}
        for again in range(40):
            first = questions(scene, again, count=1)[0]
            assert answers.setdefault(first.question.casefold(), first.answer) == first.answer


def test_a_seed_gives_the_same_conversation() -> None:
    for ask in (questions, conversation, small_talk):
        assert ask(SCENE, 3) == ask(SCENE, 3)


def test_all_kinds_of_questions_are_asked() -> None:
    turns = [turn for seed in range(200) for turn in questions(SCENE, seed)]
    assert {turn.category for turn in turns} == {
        *("count", "yes-no", "where", "colour", "size", "what", "relation", "background"),
        "follow-up",
    }


def test_a_follow_up_is_never_the_first_turn() -> None:
    assert all(questions(SCENE, seed)[0].category != "follow-up" for seed in range(200))


def test_answers_that_name_a_shape_are_true() -> None:
    """Every "There is a large red star in the top left corner" names a shape of the scene."""
    for seed in range(200):
        scene = imagine_scene(seed)
        facts = {f"{shape.full_name} {shape.place}." for shape in scene.shapes}
        for turn in questions(scene, seed, count=4):
            if turn.answer.startswith(("There is a small", "There is a large", "Yes, there is a")):
                assert turn.answer.split("here is ")[1] in facts
