"""What drafters share that copy from text they have read. Knows no model and no memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from engine.drafters.base import PlainDrafter
from engine.options import DrafterOptions
from engine.tree import DraftTree


class CopyingDrafter(PlainDrafter, ABC):
    """Reads prompt and committed tokens; learns nothing from the target's predictions.

    Where a method does not estimate how probable a copied token is, its node says 1.0.
    """

    def __init__(self, options: DrafterOptions, placeholders: frozenset[int]) -> None:
        """`placeholders`: ids of image and video features, never keyed, drafted or matched."""
        super().__init__()
        self._options = options
        self._placeholders = placeholders
        self.start(())

    @abstractmethod
    def start(self, prompt: Sequence[int]) -> None:
        """A new request: forget what belonged to the last one and read the prompt."""

    @abstractmethod
    def propose(self, max_depth: int) -> DraftTree:
        """A tree on the last observed token."""

    @abstractmethod
    def _read(self, token: int) -> None:
        """The text goes on with a token."""

    @abstractmethod
    def _interrupt(self) -> None:
        """The text is interrupted by a placeholder, which nothing may match or be copied across."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        for token in tokens:
            self._last = token
            if token in self._placeholders:
                self._interrupt()
            else:
                self._read(token)

    def _longest_chain(self, max_depth: int) -> int:
        return max(min(max_depth, self._options.max_depth, self._options.nodes), 0)


def chain(root: int, tokens: Iterable[int], source: int) -> DraftTree:
    """A tree without branches, up to the first of `tokens` that is negative: no token at all."""
    tree = DraftTree([root])
    for node, token in enumerate(tokens):
        if token < 0:
            break
        tree.add(token, node, source, 1.0)
    return tree
