"""How many tokens a pass commits at the words that depend on the picture, and at the others.

The paper's claim is that recycled predictions fail where the answer depends on the image: there one
text is followed by different words. On the demo model those words are known: what scenes are made
of. Knows the document's records (see `document`) and the words of the demo's scenes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.bench.document import Document
from engine.bench.summary import finished
from engine.demo.palette import BACKGROUNDS, COLOURS
from engine.demo.wording import KINDS

PAIRS = "pairs"
"""The category of tasks that show two pictures, so that one text has two continuations."""

_SIZES = ("large", "small")
_POSITIONS = ("top", "bottom", "left", "right", "centre", "above", "below")
_WORDS = re.compile(
    rf"\b(?:{'|'.join((*KINDS, *COLOURS, *BACKGROUNDS, *_SIZES, *_POSITIONS))})(?:s|es)?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the tokens that passes committed.

    Attributes:
        tokens: how many they are.
        passes: how many passes ended at one of them: at the token that the target had to choose
            itself, because no draft had foreseen it.
    """

    tokens: int = 0
    passes: int = 0

    def __add__(self, other: "Part") -> "Part":
        return Part(self.tokens + other.tokens, self.passes + other.passes)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens / the passes that ended at them; None where no pass did.

        Over all tokens of an answer this is its MAT. Each pass is charged to the token at which
        guessing failed, not spread over all that it committed, which would hide where that is.
        """
        return self.tokens / self.passes if self.passes else None

    @property
    def foreseen(self) -> float | None:
        """Share of these tokens that were accepted drafts: 1 - 1 / MAT."""
        return 1 - self.passes / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class Split:
    """One contender's tokens: attribute words and the rest."""

    contender: str
    attributes: Part = Part()
    rest: Part = Part()

    def __add__(self, other: "Split") -> "Split":
        return Split(self.contender, self.attributes + other.attributes, self.rest + other.rest)


def split_by(
    committed: Sequence[int], tokens: int, chosen: Callable[[int], bool]
) -> tuple[Part, Part]:
    """Split an answer's tokens by position: those that are `chosen`, and the others.

    Args:
        committed: how many tokens each pass committed.
        tokens: how many tokens the answer has; those before the first pass are in neither part.
        chosen: whether the token at this index of the answer is in the first part.
    """
    first = tokens - sum(committed)
    ends = {first + count - 1 for count in accumulate(committed)}
    parts = [Part(), Part()]
    for position in range(first, tokens):
        parts[not chosen(position)] += Part(1, int(position in ends))
    return parts[0], parts[1]


def attribute_positions(pieces: Sequence[str]) -> frozenset[int]:
    """Indices of the tokens, given as text, that hold any of an attribute word.

    Attributes are the shapes' kinds, colours, sizes and positions, and the backgrounds.
    """
    ends = list(accumulate(map(len, pieces)))
    spans = [found.span() for found in _WORDS.finditer("".join(pieces))]
    return frozenset(
        position
        for position, (piece, end) in enumerate(zip(pieces, ends, strict=True))
        if any(start < end and end - len(piece) < stop for start, stop in spans)
    )


def split_attributes(document: Document) -> tuple[Split, ...]:
    """The splits of the category `pairs`, a contender each; none without such tasks.

    Needs records with `pieces` and `committed`: those of the demo model and of our own loop.
    """
    splits: dict[str, Split] = {}
    for record in finished(document["records"]):
        committed, pieces = record["committed"], record.get("pieces")
        if record["category"] == PAIRS and committed and pieces:
            name = record["contender"]
            parts = split_by(committed, len(pieces), attribute_positions(pieces).__contains__)
            splits[name] = splits.get(name, Split(name)) + Split(name, *parts)
    return tuple(splits.values())
