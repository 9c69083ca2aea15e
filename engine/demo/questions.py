"""Questions about a scene, with the one right answer to each.

An answer is a function of the question's wording and of the scene; chance only picks which
questions are asked and how they are typed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.demo.palette import COLOURS
from engine.demo.wording import (
    DESCRIPTION_PROMPTS,
    KINDS,
    PLACES,
    Scene,
    Shape,
    counted,
    joined,
)

_COLOURS = tuple(COLOURS)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question about a scene and the one right answer."""

    category: str
    question: str
    answer: str


_Asked = tuple[Turn, Shape | None]


def _describe(scene: Scene, rng: random.Random) -> _Asked:
    prompt = rng.choice(DESCRIPTION_PROMPTS)
    only = scene.shapes[0] if len(scene.shapes) == 1 else None
    return Turn("describe", prompt, scene.description(prompt)), only


def _count(scene: Scene, rng: random.Random) -> _Asked:
    noun = rng.choice(("shape", "kind", "colour"))
    if noun == "shape":
        number, noun = len(scene.shapes), "shape"
        plural = rng.choice(("shapes", "objects", "shapes", "things"))
    elif noun == "kind":
        noun = rng.choice((rng.choice(KINDS), rng.choice(scene.shapes).kind))
        number = sum(shape.kind == noun for shape in scene.shapes)
        plural = counted(2, noun).removeprefix("two ")
    else:
        colour = rng.choice((rng.choice(_COLOURS), rng.choice(scene.shapes).colour))
        number = sum(shape.colour == colour for shape in scene.shapes)
        noun, plural = f"{colour} shape", f"{colour} shapes"
    question = rng.choice(
        ("How many {0} are there?", "How many {0} do you see?", "How many {0} are in the picture?",
         "Count the {0}.", "How many {0} can you see?", "How many {0} are in the image?")
    )  # fmt: skip
    verb = "is" if number == 1 else "are"
    answer = f"There {verb} {counted(number, noun)}."
    return Turn("count", question.format(plural), answer), None


def _exists(scene: Scene, rng: random.Random) -> _Asked:
    """Is there a red star, a star, a red shape?"""
    shape = rng.choice(scene.shapes)
    name = shape.name if rng.random() < 0.5 else _near_miss(shape, rng)
    colour, kind = name.split()
    noun = rng.choice((name, name, name, kind, f"{colour} shape"))
    found = [
        other
        for other in scene.shapes
        if (colour not in noun or other.colour == colour)
        and (kind not in noun or other.kind == kind)
    ]
    question = rng.choice(
        ("Is there a {0}?", "Do you see a {0}?", "Is there a {0} in the picture?",
         "Can you see a {0}?", "Is there a {0} in the image?")
    )  # fmt: skip
    question = question.format(noun).replace("a orange", "an orange")
    if not found:
        return Turn("yes-no", question, f"No, there is no {noun}."), None
    if len(found) > 1:
        return Turn("yes-no", question, f"Yes, there are {counted(len(found), noun)}."), None
    answer = f"Yes, there is {found[0].full_name} {found[0].place}."
    return Turn("yes-no", question, answer), found[0]


def _near_miss(shape: Shape, rng: random.Random) -> str:
    """A name that shares the colour or the kind with `shape`, so that both must be seen."""
    if rng.random() < 0.5:
        return f"{shape.colour} {rng.choice(KINDS)}"
    return f"{rng.choice(_COLOURS)} {shape.kind}"


def _reference(scene: Scene, shape: Shape, rng: random.Random) -> str:
    """A name for the shape; its kind alone will do now and then where no other shape has it."""
    alone = [other.kind for other in scene.shapes].count(shape.kind) == 1
    return shape.kind if alone and rng.random() < 0.3 else shape.name


def _where(scene: Scene, rng: random.Random) -> _Asked:
    shape = rng.choice(scene.shapes)
    name, found = _reference(scene, shape, rng), shape if rng.random() < 0.85 else None
    if found is None:
        name = _near_miss(shape, rng)
        found = next((other for other in scene.shapes if other.name == name), None)
    question = rng.choice(
        ("Where is the {0}?", "Where's the {0}?", "In which part of the picture is the {0}?",
         "Where can I find the {0}?")
    ).format(name)  # fmt: skip
    if found is None:
        return Turn("where", question, f"There is no {name} in the picture."), None
    return Turn("where", question, f"The {name} is {found.place}."), found


def _colour(scene: Scene, rng: random.Random) -> _Asked:
    kinds = [shape.kind for shape in scene.shapes]
    shape = rng.choice(scene.shapes)
    word = rng.choice(("colour", "color"))
    if len(kinds) == 1 and rng.random() < 0.5:
        question = rng.choice(("What {0} is the shape?", "What is the {0} of the shape?"))
        question = question.format(word)
    elif kinds.count(shape.kind) == 1 and rng.random() < 0.7:
        question = rng.choice(("What {0} is the {1}?", "What is the {0} of the {1}?"))
        question = question.format(word, shape.kind)
    else:
        question = f"What {word} is the shape {shape.place}?"
    return Turn("colour", question, f"The {shape.kind} is {shape.colour}."), shape


def _kind(scene: Scene, rng: random.Random) -> _Asked:
    """Which shape is the red one? Where several are red, which colours are there."""
    shape = rng.choice(scene.shapes)
    if [other.colour for other in scene.shapes].count(shape.colour) > 1:
        question = rng.choice(("Which colours are there?", "What colors do you see?"))
        colours = joined(list(dict.fromkeys(other.colour for other in scene.shapes)))
        return Turn("what", question, f"I see {colours}."), None
    question = rng.choice(
        ("What is the {0} shape?", "What shape is the {0} one?", "Which shape is {0}?")
    )
    answer = f"The {shape.colour} shape is a {shape.kind}."
    return Turn("what", question.format(shape.colour), answer), shape


def _size(scene: Scene, rng: random.Random) -> _Asked:
    shape = rng.choice(scene.shapes)
    name = _reference(scene, shape, rng)
    question = rng.choice(
        ("How big is the {0}?", "How large is the {0}?", "Is the {0} large or small?",
         "What size is the {0}?", "Is the {0} small or large?")
    )  # fmt: skip
    return Turn("size", question.format(name), f"The {name} is {shape.size}."), shape


def _shape_at(scene: Scene, rng: random.Random) -> _Asked:
    place = rng.choice(scene.shapes).place if rng.random() < 0.75 else rng.choice(PLACES)
    found = next((shape for shape in scene.shapes if shape.place == place), None)
    question = rng.choice(
        ("What is {0}?", "What shape is {0}?", "What's {0}?", "What do you see {0}?")
    ).format(place)  # fmt: skip
    if found is None:
        return Turn("what", question, f"There is nothing {place}."), None
    return Turn("what", question, f"There is {found.full_name} {place}."), found


_SIDES: dict[str, tuple[str, Callable[[Shape, Shape], bool]]] = {
    "left of": ("to the left of", lambda one, other: one.column < other.column),
    "right of": ("to the right of", lambda one, other: one.column > other.column),
    "above": ("above", lambda one, other: one.row < other.row),
    "below": ("below", lambda one, other: one.row > other.row),
}


def _beside(scene: Scene, rng: random.Random) -> _Asked:
    """Which shapes are left of, right of, above or below a shape, however far away."""
    shape, side = rng.choice(scene.shapes), rng.choice(tuple(_SIDES))
    phrase, holds = _SIDES[side]
    found = [other for other in scene.shapes if holds(other, shape)]
    name = _reference(scene, shape, rng)
    question = f"What is {rng.choice((side, phrase))} the {name}?"
    if not found:
        return Turn("relation", question, f"Nothing is {phrase} the {name}."), None
    names = joined([f"the {other.name}" for other in found])
    verb = "is" if len(found) == 1 else "are"
    answer = f"{names[0].upper()}{names[1:]} {verb} {phrase} the {name}."
    return Turn("relation", question, answer), found[0] if len(found) == 1 else None


def _related(scene: Scene, rng: random.Random) -> _Asked:
    """Yes or no: is one shape left of, above, larger than ... another?"""
    if len(scene.shapes) < 2:
        return _exists(scene, rng)
    one, other = rng.sample(scene.shapes, 2)
    if rng.random() < 0.35:
        word = rng.choice(("larger", "smaller", "bigger"))
        question = f"Is the {one.name} {word} than the {other.name}?"
        return Turn("relation", question, _compared(one, other, word)), None
    side = rng.choice(tuple(_SIDES))
    phrase, holds = _SIDES[side]
    question = f"Is the {one.name} {rng.choice((side, phrase))} the {other.name}?"
    if holds(one, other):
        return Turn("relation", question, f"Yes, it is {phrase} the {other.name}."), one
    return Turn("relation", question, f"No, it is not {phrase} the {other.name}."), one


def _compared(one: Shape, other: Shape, word: str) -> str:
    if one.size == other.size:
        return f"No, both are {one.size}."
    right = (one.size == "small") == (word == "smaller")
    start = "Yes" if right else "No"
    return f"{start}, the {one.name} is {one.size} and the {other.name} is {other.size}."


def _background(scene: Scene, rng: random.Random) -> _Asked:
    question = rng.choice(
        ("What colour is the background?", "What color is the background?",
         "What is the background?", "What is the colour of the background?")
    )  # fmt: skip
    return Turn("background", question, f"The background is {scene.background}."), None


_GREETING = "I am a small demo model. Show me a picture of shapes and ask me about it."
_PUZZLED = "I only know pictures of simple shapes."
_SMALL_TALK = {
    **dict.fromkeys(("Hello", "Hi!", "Hello!", "Who are you?", "What are you?", "Help"), _GREETING),
    **dict.fromkeys(("What can you do?", "Hey", "What is your name?", "Good morning"), _GREETING),
    **dict.fromkeys(("Write a poem.", "Tell me a story.", "What is the weather?"), _PUZZLED),
    **dict.fromkeys(("What is the capital of France?", "Translate this.", "Why?"), _PUZZLED),
    **dict.fromkeys(("Is there a cat?", "Who is this?", "Where was this taken?"), _PUZZLED),
    **dict.fromkeys(("Write a program.", "What is two plus two?", "Do you like it?"), _PUZZLED),
}


def _chat(scene: Scene, rng: random.Random) -> _Asked:
    """Small talk, which has nothing to do with the scene."""
    question = rng.choice(tuple(_SMALL_TALK))
    return Turn("small-talk", question, _SMALL_TALK[question]), None


_ASKERS = (
    *(_count, _exists, _where, _colour, _kind, _size, _shape_at, _beside, _related, _background),
)


def _follow_up(scene: Scene, it: Shape, rng: random.Random) -> _Asked:
    """A question that only makes sense after the turn that was about `it`."""
    others = [shape for shape in scene.shapes if shape is not it]
    asked = rng.choice(("where", "size", "colour", "kind", "rest", "side"))
    if asked == "where":
        question = rng.choice(("Where is it?", "And where is it?", "Where?"))
        answer = f"It is {it.place}."
    elif asked == "size":
        question = rng.choice(("How big is it?", "And how large is it?", "Is it large or small?"))
        answer = f"It is {it.size}."
    elif asked == "colour":
        question = rng.choice(("What colour is it?", "And its colour?", "What color is it?"))
        answer = f"It is {it.colour}."
    elif asked == "kind":
        question = rng.choice(("What shape is it?", "Which shape is it?"))
        answer = f"It is a {it.kind}."
    elif asked == "rest":
        question = rng.choice(("What else is there?", "Anything else?", "And what else?"))
        answer = f"There is also {joined([shape.full_name for shape in others])}." if others else (
            "There is nothing else."
        )  # fmt: skip
    else:
        side = rng.choice(tuple(_SIDES))
        phrase, holds = _SIDES[side]
        question = f"What is {rng.choice((side, phrase))} it?"
        names = [f"the {shape.name}" for shape in others if holds(shape, it)]
        verb = "is" if len(names) == 1 else "are"
        answer = f"Nothing is {phrase} it."
        if names:
            answer = f"T{joined(names)[1:]} {verb} {phrase} it."
    return Turn("follow-up", question, answer), it if asked not in {"rest", "side"} else None


def _typed(question: str, rng: random.Random) -> str:
    """The question as people type it: other cases, no full stop."""
    chance = rng.random()
    if chance < 0.5:
        return question
    if chance < 0.7:
        return question.lower()
    if chance < 0.92:
        return question.lower().rstrip("?.")
    return question.upper() if chance < 0.95 else question.rstrip("?.")


def _converse(
    scene: Scene, rng: random.Random, askers: Sequence[Callable[[Scene, random.Random], _Asked]]
) -> list[Turn]:
    """One turn an asker, save that half of those that could follow up on the last one do."""
    turns: list[Turn] = []
    it: Shape | None = None
    for ask in askers:
        if it is not None and rng.random() < 0.5:
            turn, it = _follow_up(scene, it, rng)
        else:
            turn, it = ask(scene, rng)
        turns.append(replace(turn, question=_typed(turn.question, rng)))
    return turns


def questions(scene: Scene, seed: int, count: int = 2) -> list[Turn]:
    """A conversation of `count` short questions; later ones may only make sense after the last."""
    rng = random.Random(seed)
    return _converse(scene, rng, rng.choices(_ASKERS, k=count))


def conversation(scene: Scene, seed: int, count: int = 2) -> list[Turn]:
    """As `questions`, with one turn, the first one more often than not, a description."""
    rng = random.Random(seed)
    askers = rng.choices(_ASKERS, k=count - 1)
    askers.insert(0 if rng.random() < 0.6 else rng.randrange(count), _describe)
    return _converse(scene, rng, askers)


def small_talk(scene: Scene, seed: int) -> list[Turn]:
    """One turn that needs no picture, then one about the scene."""
    rng = random.Random(seed)
    return _converse(scene, rng, (_chat, rng.choice(_ASKERS)))
