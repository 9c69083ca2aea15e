"""What a scene is, and how it is described.

A description is a function of the prompt's wording and of the scene, so that a model that decodes
greedily can be right word for word. Questions and their answers are in `questions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("circle", "square", "triangle", "star", "cross", "ring")

_NUMBERS = ("no", "one", "two", "three", "four", "five")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
PLACES = (
    *("in the top left corner", "at the top", "in the top right corner"),
    *("on the left", "in the centre", "on the right"),
    *("in the bottom left corner", "at the bottom", "in the bottom right corner"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape of a scene; `row` and `column` count from the top left, 0 to 2."""

    kind: str
    colour: str
    size: str
    row: int
    column: int

    @property
    def place(self) -> str:
        """Where it is, as in "in the top left corner"."""
        return PLACES[3 * self.row + self.column]

    @property
    def name(self) -> str:
        """Colour and kind, which no two shapes of a scene share."""
        return f"{self.colour} {self.kind}"

    @property
    def full_name(self) -> str:
        """Size, colour and kind with the article."""
        return f"a {self.size} {self.colour} {self.kind}"


@dataclass(frozen=True, slots=True)
class Scene:
    """A background and its shapes in reading order."""

    background: str
    shapes: tuple[Shape, ...]

    def description(self, prompt: str) -> str:
        """What the model should say when it is asked to describe this scene with `prompt`.

        The prompt's wording chooses among four manners: "detail" asks for relations, "brief" or
        "one sentence" for a single sentence, a "what ..." question for a list, and anything else
        for the plain description.
        """
        words = prompt.casefold()
        if any(word in words for word in ("brief", "one sentence", "short")):
            return _brief(self)
        if any(word in words for word in ("detail", "thorough", "precise", "everything")):
            return _detailed(self)
        if "what" in words or "list" in words:
            return _listing(self)
        return _plain(self)


DESCRIPTION_PROMPTS = (
    *("Describe the image.", "Describe this image.", "Describe the picture.", "Describe"),
    *("Describe this picture.", "Describe it.", "Describe this.", "Please describe the image."),
    *("Describe the scene.", "Can you describe this picture?", "Caption this image."),
    *("Describe the image in detail.", "Describe this picture in detail.", "Describe in detail."),
    *("Describe this image in detail.", "Give a detailed description of the image."),
    *("Please describe the picture in detail.", "Tell me everything about this picture."),
    *("What is in this image?", "What is in the picture?", "What do you see?", "What is this?"),
    *("What can you see in this picture?", "What does the image show?", "What's in the image?"),
    *("What do you see in this image?", "List the shapes.", "What shapes are there?"),
    *("Describe the image briefly.", "Describe this picture in one sentence.", "In short?"),
    *("Briefly describe the picture.", "Give a short description of the image."),
)


def joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(number: int, noun: str) -> str:
    plural = "crosses" if noun.endswith("cross") else f"{noun}s"
    return f"{_NUMBERS[number]} {noun if number == 1 else plural}"


def direction(one: Shape, other: Shape) -> str:
    """Where `one` is as seen from `other`: "above and to the left of", say."""
    parts = []
    if one.row != other.row:
        parts.append("above" if one.row < other.row else "below")
    if one.column != other.column:
        parts.append(f"to the {'left' if one.column < other.column else 'right'} of")
    return " and ".join(parts)


def _sizes(scene: Scene) -> str:
    large = sum(shape.size == "large" for shape in scene.shapes)
    small = len(scene.shapes) - large
    if len(scene.shapes) == 1:
        return "It is the only shape in the picture."
    if not large or not small:
        return f"All of them are {'large' if large else 'small'}."
    verbs = ("is" if large == 1 else "are", "is" if small == 1 else "are")
    return (
        f"{_NUMBERS[large].capitalize()} {verbs[0]} large and {_NUMBERS[small]} {verbs[1]} small."
    )


def _brief(scene: Scene) -> str:
    names = joined([f"a {shape.name}".replace("a orange", "an orange") for shape in scene.shapes])
    number = counted(len(scene.shapes), "shape").capitalize()
    return f"{number} on a {scene.background} background: {names}."


def _listing(scene: Scene) -> str:
    names = joined([shape.full_name for shape in scene.shapes])
    number = counted(len(scene.shapes), "shape")
    return f"I see {number}: {names}. The background is {scene.background}."


def _plain(scene: Scene) -> str:
    number = counted(len(scene.shapes), "shape")
    sentences = [f"This picture shows {number} on a {scene.background} background."]
    for shape in scene.shapes:
        sentences.append(f"{shape.place.capitalize()} there is {shape.full_name}.")
    return " ".join([*sentences, _sizes(scene)])


def _detailed(scene: Scene) -> str:
    number = counted(len(scene.shapes), "shape")
    sentences = [f"The picture has a {scene.background} background and shows {number}."]
    if len(scene.shapes) == 1:
        only = scene.shapes[0]
        return f"{sentences[0]} It is {only.full_name} {only.place}. {_sizes(scene)}"
    for index, shape in enumerate(scene.shapes):
        sentence = f"The {_ORDINALS[index]} is {shape.full_name} {shape.place}"
        if index:
            before = scene.shapes[index - 1]
            sentence += f", {direction(shape, before)} the {before.name}"
        sentences.append(f"{sentence}.")
    return " ".join([*sentences, _sizes(scene), "There is nothing else in the picture."])
