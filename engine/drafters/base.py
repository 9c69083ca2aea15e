"""What every drafting method is to the decoding loop, and the method that drafts nothing.

A request's life: `start`, `recognise`, `seed`*, then (`propose`, `learn`, `observe`)* pass by pass.
If it goes on with the conversation of the request before, `resume` takes the place of `start`.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.logits import Predictions
from engine.tree import DraftTree


class Drafter(Protocol):
    """Proposes draft trees; may be wrong at no cost but time."""

    @property
    def k(self) -> int:
        """How many of the target's next tokens it wants to see at every node; 0: only choices."""
        ...

    @property
    def seeds(self) -> int:
        """At how many of the prompt's last text positions it wants the target's predictions."""
        ...

    @property
    def states(self) -> bool:
        """Whether it wants the target's states (`engine.states`), of the prompt and every node."""
        ...

    def start(self, prompt: Sequence[int]) -> None:
        """A new request: forget what belonged to the last one."""
        ...

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """The same conversation goes on: its prompt is `kept` and, behind that, `new`.

        What was learned in the conversation may be kept. Only `new` can be seeded.
        """
        ...

    def recognise(self, states: NDArray[np.uint64]) -> None:
        """[m, WORDS] the target's states at all tokens of the prompt, or of `resume`'s `new`."""
        ...

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """What the target predicts after these positions of the prompt, or of `resume`'s `new`."""
        ...

    def observe(self, tokens: Sequence[int]) -> None:
        """Tokens that were committed."""
        ...

    def propose(self, max_depth: int) -> DraftTree:
        """A tree on the last observed token, with no path longer than `max_depth`."""
        ...

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """What the target predicts at every node of the tree that was proposed last.

        Args:
            path: the nodes that were accepted, root first.
        """
        ...


class PlainDrafter:
    """Autoregressive decoding: the tree is its root."""

    k = 0
    seeds = 0
    states = False

    def __init__(self) -> None:
        self._last = -1

    def start(self, prompt: Sequence[int]) -> None:
        """Nothing to forget."""

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """As a new request."""
        self.start([*kept, *new])

    def recognise(self, states: NDArray[np.uint64]) -> None:
        """Nothing to learn."""

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """Nothing to learn."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Remember the root of the next tree."""
        self._last = tokens[-1]

    def propose(self, max_depth: int) -> DraftTree:
        """The root alone."""
        return DraftTree([self._last])

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Nothing to learn."""
