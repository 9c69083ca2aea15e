"""The longest suffix of a text that occurred before, and where: an online suffix automaton.

The automaton is that of Blumer et al. (1985); every state also knows where one of its strings
ended last. Extending by a token takes constant time on average. Knows tokens only.
"""

from collections.abc import Iterable

RECENCY_STEPS = 32
"""How many suffix links are followed to move occurrences to the newest; repetitive text has long
chains of them, and an older occurrence is a valid one too."""


class SuffixIndex:
    """A growing text and its repeated suffixes."""

    def __init__(self, recency_steps: int = RECENCY_STEPS) -> None:
        """With `recency_steps` 0 an earlier occurrence is always the first one."""
        self._recency_steps = recency_steps
        self.text: list[int] = []
        self.match_length = 0
        """Tokens in the longest suffix that occurred before."""
        self.match_end = 0
        """Index in `text` of the token that followed that earlier occurrence."""
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._last = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        next_, link, length, end = self._next, self._link, self._length, self._end
        self.text.append(token)
        new = len(next_)
        next_.append({})
        length.append(length[self._last] + 1)
        link.append(0)
        end.append(len(self.text))
        state = self._last
        while state != -1 and token not in next_[state]:
            next_[state][token] = new
            state = link[state]
        if state != -1:
            link[new] = self._linked(state, token)
        self._last = new
        repeated = link[new]
        self.match_length, self.match_end = length[repeated], end[repeated]
        for _ in range(self._recency_steps):
            if repeated <= 0:
                break
            end[repeated] = len(self.text)
            repeated = link[repeated]

    def _linked(self, state: int, token: int) -> int:
        """The state of the longest proper suffix, split off where it is part of a longer one."""
        next_, link, length = self._next, self._link, self._length
        target = next_[state][token]
        if length[target] == length[state] + 1:
            return target
        clone = len(next_)
        next_.append(dict(next_[target]))
        length.append(length[state] + 1)
        link.append(link[target])
        self._end.append(self._end[target])
        link[target] = clone
        while state != -1 and next_[state].get(token) == target:
            next_[state][token] = clone
            state = link[state]
        return clone
