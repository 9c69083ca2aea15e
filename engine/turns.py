"""The turns of a conversation: text and pictures in the order in which the model reads them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from engine.errors import PromptError

Role = Literal["system", "user", "assistant"]
Part = str | Image.Image

_REFERENCE = re.compile(r"\{\{([0-9]+)\}\}|\{([0-9]+)\}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as a chat template gets it.

    Attributes:
        role: who speaks.
        parts: texts and pictures in reading order.
        placed: whether the user said where the pictures stand.
    """

    role: Role
    parts: tuple[Part, ...]
    placed: bool = False

    @property
    def images(self) -> list[Image.Image]:
        """The pictures among the parts."""
        return [part for part in self.parts if not isinstance(part, str)]

    def written(self, markup: str) -> str:
        """One text, with `markup` for each picture."""
        return "".join(part if isinstance(part, str) else markup for part in self.parts)


def turn_of(role: Role, text: str, images: Sequence[Image.Image], *, template: bool) -> Turn:
    """A turn whose pictures stand before its text or, with `template`, where `{1}` refers to them.

    Raises:
        PromptError: a reference to no picture, two to one, or a picture without one.
    """
    if not template:
        return Turn(role, (*images, text))
    parts: list[Part] = []
    left = set(range(1, len(images) + 1))
    words, end = "", 0
    for found in _REFERENCE.finditer(text):
        words, end = words + text[end : found.start()], found.end()
        if found[1]:  # braces in braces: the text itself
            words += f"{{{found[1]}}}"
            continue
        number = int(found[2])
        if number not in left:
            raise PromptError(_wrong_reference(number, len(images)))
        left.remove(number)
        parts += [*([words] if words else []), images[number - 1]]
        words = ""
    if left:
        raise PromptError(f"the template does not use picture {min(left)}: put {{{min(left)}}} in")
    return Turn(role, (*parts, words + text[end:]), placed=True)


def _wrong_reference(number: int, given: int) -> str:
    if 1 <= number <= given:
        return f"the template uses picture {{{number}}} twice: give the picture twice instead"
    way_out = f"for the text {{{number}}} write {{{{{number}}}}}"
    count = "there is 1 picture" if given == 1 else f"there are {given} pictures"
    return f"the template has {{{number}}}, but {count}; {way_out}"


def in_order(turns: Sequence[Turn], rendered: str, image_token: str) -> bool:
    """Whether a rendered conversation has every picture where its user placed it."""
    end = 0
    for part in (part for turn in turns if turn.placed for part in turn.parts):
        word = part.strip() if isinstance(part, str) else image_token
        at = rendered.find(word, end)
        if at < 0:
            return False
        end = at + len(word)
    return True


def without_system(turns: Sequence[Turn]) -> list[Turn]:
    """The system message's text put in front of the first user's text."""
    system, *rest = turns
    at = next(index for index, turn in enumerate(rest) if turn.role == "user")
    parts = list(rest[at].parts)
    first = next(index for index, part in enumerate(parts) if isinstance(part, str))
    parts[first] = f"{system.written('')}\n\n{parts[first]}"
    rest[at] = Turn("user", tuple(parts), rest[at].placed)
    return rest
