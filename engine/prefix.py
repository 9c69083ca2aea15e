"""What of a prompt the cache holds from the prompt before, and what must still be read.

Tokens are compared with those that were read, and pictures with those that were looked at. Knows
the names of transformers' inputs; knows no model and no cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import lt

import torch
from torch import Size, Tensor

from engine.prompts import EncodedPrompt

PICTURES = ("pixel_", "image_")
"""How the names of inputs begin that hold pictures, one behind the other along their first axis
or, in some families, the second. Other inputs go with the whole prompt."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The part of a prompt that must still be read.

    Attributes:
        kept: tokens in front of it, which the cache holds.
        inputs: as `EncodedPrompt.model_inputs`, without the pictures among those tokens.
    """

    kept: int
    inputs: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Pictures:
    """The pictures of a prompt: how many tokens stand for them, and the shapes of their inputs."""

    tokens: int
    shapes: dict[str, Size]


class ReadPrompts:
    """Remembers the prompts of one conversation, each of which begins more or less like the last.

    The cache can only be cut between pictures that came with different prompts: tokens do not tell
    where one picture ends and the next begins.

    Attributes:
        text: the prompt read last and its answer so far, which the decoding loop lengthens. The
            cache holds a part of it, from its first token on.
    """

    def __init__(self, placeholders: frozenset[int]) -> None:
        """`placeholders`: ids that stand for image or video features."""
        self.text: list[int] = []
        self._placeholders = placeholders
        self._inputs: dict[str, Tensor] = {}
        self._read = [_Pictures(0, {})]

    def rest(self, prompt: EncodedPrompt, cached: int) -> Rest:
        """What is left to read of a prompt, at least its last token.

        Its pictures count as read from now on, its tokens once they are `text`.

        Args:
            prompt: the whole conversation.
            cached: how many tokens the cache holds.
        """
        ids: list[int] = prompt.input_ids[0].tolist()
        same = _common(ids[:-1], self.text[:cached])
        self.text = []
        places = [place for place in range(same) if ids[place] in self._placeholders]
        inputs = prompt.model_inputs
        while not self._holds(self._read[-1], len(places), inputs):
            self._read.pop()
        known = self._read[-1]
        if len(places) > known.tokens:
            same = places[known.tokens]
        if prompt.image_tokens > known.tokens:
            self._read.append(_pictures_of(prompt))
        self._inputs = inputs
        return Rest(same, _behind(known, inputs))

    def _holds(self, pictures: _Pictures, placeholders: int, inputs: dict[str, Tensor]) -> bool:
        """Whether the first pictures of a prompt, of which the cache has this many placeholders,
        are these."""
        return pictures.tokens <= placeholders and all(
            name in inputs and _equal(self._inputs[name], inputs[name], shape)
            for name, shape in pictures.shapes.items()
        )


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ids), len(others)))


def _pictures_of(prompt: EncodedPrompt) -> _Pictures:
    shapes = {
        name: value.shape
        for name, value in prompt.model_inputs.items()
        if name.startswith(PICTURES)
    }
    return _Pictures(prompt.image_tokens, shapes)


def _equal(read: Tensor, given: Tensor, shape: Size) -> bool:
    """Whether both begin with the same pictures; behind `shape` is padding, or are others."""
    if given.ndim != len(shape) or any(map(lt, given.shape, shape)):
        return False
    region = tuple(slice(size) for size in shape)
    return torch.equal(read[region], given[region])


def _behind(known: _Pictures, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs without the pictures that are known."""
    rest: dict[str, Tensor] = {}
    for name, value in inputs.items():
        shape = known.shapes.get(name)
        if shape is None:
            rest[name] = value
        elif shape != value.shape:
            axis = next(i for i, size in enumerate(shape) if size != value.shape[i])
            rest[name] = value.narrow(axis, shape[axis], value.shape[axis] - shape[axis])
    return rest
