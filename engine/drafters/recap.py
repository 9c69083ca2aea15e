"""RECAP (arXiv 2611.05894): the target's own predictions, recycled into a tree of guesses.

Contextual memory under two- and three-token keys, token memory under one-token keys, what was
predicted in similar states of the target, fusion, best-first search and suffix continuations.
The hot path is plain Python over small lists; `engine.drafters.recap_native` is the same in C++,
to the last bit, for which sums are made number by number (Python's own `sum` is more exact from
3.12 on).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from heapq import heappop, heappush, heapreplace
from itertools import pairwise
from math import inf
from operator import add
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.budget import Budget, Calibration
from engine.fusion import fuse
from engine.logits import Predictions
from engine.memory.keeper import Savable
from engine.memory.states import StateMemory
from engine.memory.table import PAIR, TOKEN_BITS, TRIPLE
from engine.memory.transitions import (
    NO_CONTEXT,
    NO_TOKEN,
    ONE,
    THREE,
    TWO,
    ContextualMemory,
    Kept,
    Prediction,
    Recent,
    TokenMemory,
    added,
    kept,
    likeliest,
    predictions_of,
)
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.suffix import SuffixIndex
from engine.tree import DraftTree

STEADY = (0, 0, 0, 1, 1, 1, 1, 2)
"""How steady a longer key is, by its run; a longer one is as steady as the longest here."""
TOKEN, COPIED, STAND_IN = range(3)
CONTEXTUAL_2, CONTEXTUAL_3, EARLIER_2, EARLIER_3 = range(3, 15, 1 + STEADY[-1])
"""Kinds of guesses: by the longest key that knows the context, from a repeated suffix, or from the
one-token keys of tokens that might have stood in the place of one that is not known. Those of
longer keys are the first of as many as there are kinds of steadiness."""
KEYED = {
    kind: SOURCES.index(name)
    for kind, name in (
        (TOKEN, "token"),
        (CONTEXTUAL_2, "contextual-2"),
        (CONTEXTUAL_3, "contextual-3"),
        (EARLIER_2, "earlier-2"),
        (EARLIER_3, "earlier-3"),
        (STAND_IN, "token"),
    )
}
SUFFIX = SOURCES.index("suffix")
READ = 0.625
"""How probable a token of the prompt is taken to have been, of which all that is known is that it
was written there; a number of few bits. It has no rivals, so that fusion is confident of it."""
SEEDS = 16
"""A few: before a short answer more would not pay, and before a long one hardly."""
NO_MATCH = (-1, 0)
LONGEST_TRUST = 64
PRIOR_TRUST = (0.4, 0.85, 0.2, *3 * (0.6,), *3 * (0.75,), *3 * (0.5,), *3 * (0.65,))
"""The share of each kind's claims that held on text (SmolLM2-135M, Spec-Bench)."""


class Recap(ABC):
    """A RECAP drafter of one session, in whatever language.

    Attributes:
        options: as it was made.
        memory: what outlives requests.
    """

    options: DrafterOptions
    memory: Savable

    @property
    def k(self) -> int:
        """Predictions kept of every node."""
        return self.options.k

    @property
    def seeds(self) -> int:
        """At how many of the prompt's last text positions predictions fill the memories."""
        return SEEDS if self.options.seeding else 0

    @property
    def states(self) -> bool:
        """Whether it wants the target's states."""
        return self.options.states > 0

    @property
    @abstractmethod
    def contextual_keys(self) -> int:
        """Keys of two and three tokens in the contextual memory."""

    @abstractmethod
    def settle(self) -> None:
        """Leave what this request has learned to later ones."""

    @abstractmethod
    def pace(self) -> dict[str, Any]:
        """What was learned of the machine's speed and of how often claims hold, ready for JSON."""

    @abstractmethod
    def resume_pace(self, pace: dict[str, Any]) -> None:
        """Go on with what `pace` gave; what does not fit is not taken."""


class RecapDrafter(Recap):
    """The RECAP drafter in Python; its token memory may be shared."""

    memory: TokenMemory

    def __init__(
        self, options: DrafterOptions, memory: TokenMemory, placeholders: frozenset[int]
    ) -> None:
        """`placeholders`: ids of image and video features, never keyed, drafted or matched."""
        self.options = options
        self.memory = memory
        self.placeholders = placeholders
        self._budget = Budget()
        self._calibration = Calibration(PRIOR_TRUST)
        self._began = 0.0
        self._contextual = ContextualMemory()
        self._seen = StateMemory()
        self._trust = [suffix_trust(options, match) for match in range(LONGEST_TRUST + 1)]
        self.start(())

    @property
    def contextual_keys(self) -> int:
        """Keys of two and three tokens in the contextual memory."""
        return len(self._contextual.pairs) + len(self._contextual.triples)

    def pace(self) -> dict[str, Any]:
        """What was learned of the machine's speed and of how often claims hold, ready for JSON."""
        return {"costs": self._budget.numbers(), "claims": self._calibration.numbers()}

    def resume_pace(self, pace: dict[str, Any]) -> None:
        """Go on with what `pace` gave; what does not fit is not taken."""
        budget, calibration = Budget(), Calibration(PRIOR_TRUST)
        with suppress(AttributeError, TypeError, ValueError, KeyError, ZeroDivisionError):
            budget.restore(pace["costs"])
            calibration.restore(**pace["claims"])
            self._budget, self._calibration = budget, calibration

    def start(self, prompt: Sequence[int]) -> None:
        """Drop the contextual memory and read the prompt."""
        self.settle()
        if not self.options.persistence:
            self.memory = TokenMemory()
            self._seen = StateMemory()
        self._seen.begin()
        self._contextual = ContextualMemory()
        self._prompted = StateMemory()
        self.resume((), prompt)

    def settle(self) -> None:
        """Leave what this request has learned to later ones."""
        if self.options.phrases and self.options.persistence:
            self.memory.phrases.absorb(self._contextual)

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Read the conversation as it stands now; its contextual memory stays."""
        self._suffix = SuffixIndex()
        self._chosen_from: Prediction | None = None
        self._context = NO_CONTEXT
        self._last = NO_TOKEN
        self._length = 0
        self._contexts: list[int] = []
        self._drafted: list[_Child] = []
        self._expanded: list[_Expanded] = []
        self._parents: list[int] = []
        self._prompt_contexts: list[int] = []
        self._prompt_states: list[int] = []
        self._state: int | None = None  # before the last token
        self.observe(kept)
        for token in new:
            self._read(token)
            self._prompt_contexts.append(self._context)

    def recognise(self, states: NDArray[np.uint64]) -> None:
        """Learn in which states the target read the prompt, as if it had predicted it."""
        known = self._prompt_states = _numbers(states)
        self._state = known[-1]
        contexts = self._prompt_contexts
        for at in range(1, len(contexts) - 1):
            token, follower = contexts[at] & ONE, contexts[at + 1] & ONE
            if NO_TOKEN not in (token, follower):
                row = Prediction((follower,), (READ,))
                self._prompted.store(token, known[at - 1], known[at], row)

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """Learn what the target predicts inside the prompt."""
        rows = predictions_of(predictions.top_ids, predictions.top_probs)
        states = self._prompt_states
        for position, row in zip(positions, rows, strict=True):
            context = self._prompt_contexts[position]
            self._store(context, row, self._know(context))
            if states and position:
                self._see(context, states[position - 1], states[position], row)

    def observe(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        for token in tokens:
            self._read(token)

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Write back every node's prediction; the accepted path last, so that it prevails."""
        foreseen = self._by_guesses(path)
        accepted = set(path)
        for node, (_, _, kind, claim) in enumerate(
            self._drafted[: len(self._contexts) - 1], start=1
        ):
            if self._parents[node] in accepted:
                self._calibration.observe(kind, claim, node in accepted)
        rejected = [node for node in range(len(self._contexts)) if node not in accepted]
        rows = predictions_of(predictions.top_ids, predictions.top_probs)
        for node in rejected:
            rows[node].by_guess = True
        states = [] if predictions.states is None else _numbers(predictions.states)
        for node in (*rejected, *path):
            self._store(self._contexts[node], rows[node], self._expanded[node].known)
            if states:
                before = states[self._parents[node]] if node else self._state
                self._see(self._contexts[node], before, states[node], rows[node])
        self._chosen_from = rows[path[-1]]
        self._state = states[path[-1]] if states else None
        seconds = perf_counter() - self._began
        self._budget.observe(len(self._contexts), len(path), seconds, foreseen)

    def _by_guesses(self, path: Sequence[int]) -> int:
        """How many accepted drafts the longest key foresaw that knew, from a rejected guess."""
        count = 0
        for parent, node in pairwise(path):
            _, token, kind, _ = self._drafted[node - 1]
            if kind != COPIED:
                row = self._surest(self._contexts[parent], self._expanded[parent].known)
                count += row is not None and row.by_guess and token in row.ids
        return count

    def _surest(self, context: int, known: "_Known") -> Prediction | None:
        """What the longest key holds that knows a context."""
        longest = known.triple or known.pair
        return longest[0] if longest else self.memory.recall(context & ONE)

    def propose(self, max_depth: int) -> DraftTree:
        """Best-first search for the paths that are most likely to be accepted.

        It ends where a larger tree would not raise the expected tokens per second or, with a
        budget that is fixed, where that is spent.

        The heap holds candidates as (minus path probability, parent, rank among its children): of
        every parent the best that is not yet in the tree.
        """
        self._began = perf_counter()
        options, budget = self.options, self._budget
        deepest = min(max_depth, options.max_depth)
        tree, self._drafted = DraftTree([self._last]), []
        self._parents = tree.parents
        self._contexts = contexts = [self._context]
        budget.start(self._length)
        floor = options.min_probability
        if options.adaptive:
            floor = max(floor, budget.floor())
        matches = [(self._suffix.match_end, self._suffix.match_length)]
        least = floor if deepest > 0 else inf
        self._expanded = expanded = [self._expand(self._context, self._state, *matches[0], least)]
        heap = [(-child[0], 0, 0) for child in expanded[0].children[:1]]
        while heap and len(tree) <= options.nodes:
            minus, parent, rank = heap[0]
            if options.adaptive and not budget.wants(-minus):
                break
            siblings = expanded[parent].children
            child = siblings[rank]
            token = child[1]
            node = tree.add(token, parent, expanded[parent].source(child), -minus)
            self._drafted.append(child)
            if rank + 1 < len(siblings):
                reached = tree.probabilities[parent] * siblings[rank + 1][0]
                heapreplace(heap, (-reached, parent, rank + 1))
            else:
                heappop(heap)
            context = (contexts[parent] << TOKEN_BITS | token) & THREE
            match = self._follow(token, *matches[parent])
            contexts.append(context)
            matches.append(match)
            further = tree.depths[node] < deepest and minus < 0  # a long path's may be nothing
            least = floor / -minus if further else inf
            expanded.append(self._expand(context, expanded[parent].state, *match, least))
            if expanded[node].children:
                heappush(heap, (minus * expanded[node].children[0][0], node, 0))
        if options.adaptive:
            tree.truncate(budget.size)
            del contexts[budget.size :]
        return tree

    def _expand(
        self, context: int, before: int | None, match_end: int, match_length: int, least: float
    ) -> "_Expanded":
        """The candidates for a node's children that survive with more than `least`, best first.

        What is kept under the node's token for states like the one before it, and under the node's
        three keys, is fused with the suffix's continuation.
        """
        options = self.options
        rows, specificity, knew, state = self._recall(context, before)
        kind = knew.longest
        fused = fuse(rows, specificity, options.entropy_weighting, least)
        likely: list[_Child] = []
        text = self._suffix.text
        if match_length >= options.suffix_min_match and options.suffix and match_end < len(text):
            follower, trust = text[match_end], self._trust[min(match_length, LONGEST_TRUST)]
            survival = self._calibration.survival(COPIED, trust)
            stated = min(fused.get(follower, 0.0), 1.0)
            if (
                follower >= 0
                and survival > least
                and survival >= self._calibration.survival(kind, stated)
            ):
                fused.pop(follower, None)
                likely.append((survival, follower, COPIED, trust))
        shares, steps = self._calibration.shares[kind], Calibration.STEPS
        for token, stated in fused.items():
            claim = stated if stated < 1.0 else 1.0  # garbage may state more
            survival = min(claim * shares[int(claim * steps)], 1.0)
            if survival > least and token not in self.placeholders:
                likely.append((survival, token, kind, claim))
        likely.sort(reverse=True)
        return _Expanded(likely, knew, state)

    def _recall(
        self, context: int, before: int | None
    ) -> "tuple[list[Prediction], list[float], _Known, int | None]":
        """What a node's one-, two- and three-token keys hold, and what was predicted behind its
        token in states like the one before it, with the specificity of each; and in what state the
        target may be behind it."""
        one, two, three = self.options.specificity
        known = self._know(context)
        rows: list[Prediction] = []
        specificity: list[float] = []

        def weigh(row: Prediction, weight: float) -> None:
            for i, other in enumerate(rows):
                if other is row:  # one pass wrote both
                    specificity[i] += weight
                    return
            rows.append(row)
            specificity.append(weight)

        if known.triple is not None:
            weigh(known.triple[0], three)
        if known.pair is not None:
            weigh(known.pair[0], two)
        recent = (self.memory.recent(context & ONE) or ()) if one else ()
        for row in recent:
            weigh(row, one / len(recent))
        similar = None
        if before is not None:
            memories = (self._seen, self._prompted)
            similar = StateMemory.similar(memories, context & ONE, before)
        if similar is not None:
            for row, share in zip(similar.rows, similar.shares, strict=True):
                weigh(row, self.options.states * share)
        if one and not rows and context == self._context:
            known = known._replace(first=STAND_IN)
            for row in self._stand_in() or ():
                weigh(row, one)
        return rows, specificity, known, None if similar is None else similar.behind

    def _know(self, context: int) -> "_Known":
        """What is kept under the longer keys of a context.

        One that this request does not know is looked for among those of earlier ones.
        """
        _, two, three = self.options.specificity
        phrases = self.memory.phrases if self.options.phrases else None
        pair, triple, second, third = None, None, CONTEXTUAL_2, CONTEXTUAL_3
        if three:
            triple = self._contextual.triples.get(context)
            if triple is None and phrases is not None:
                triple, third = phrases.recall(TRIPLE | context), EARLIER_3
        if two:
            pair = self._contextual.pairs.get(context & TWO)
            if pair is None and phrases is not None:
                pair, second = phrases.recall(PAIR | context & TWO), EARLIER_2
        return _Known(pair, triple, TOKEN, second, third)

    def _stand_in(self) -> Recent | None:
        """What may follow the last token, of which nothing is known: what follows those that the
        target might have chosen in its place, by how likely it was to choose them."""
        if self._chosen_from is None:
            return None
        rows, chances = [], []
        for rival, chance in zip(self._chosen_from.ids, self._chosen_from.probs, strict=True):
            row = self.memory.recall(rival)
            if row is not None:
                rows.append(row)
                chances.append(chance)
        followers = added(rows, chances)
        total = reduce(add, followers.values(), 0.0)
        if not total:
            return None
        return (likeliest({token: each / total for token, each in followers.items()}, self.k),)

    def _follow(self, token: int, match_end: int, match_length: int) -> tuple[int, int]:
        """The match of a node's child: one longer if the child goes on like the earlier text."""
        text = self._suffix.text
        if match_length and match_end < len(text) and text[match_end] == token:
            return match_end + 1, match_length + 1
        return NO_MATCH

    def _read(self, token: int) -> None:
        self._last = token
        self._length += 1
        if token in self.placeholders:
            if self._context != NO_CONTEXT:
                # A separator that occurs nowhere else, so that no match crosses a picture.
                self._suffix.extend((-1 - len(self._suffix.text),))
            self._context = NO_CONTEXT
        else:
            self._context = (self._context << TOKEN_BITS | token) & THREE
            self._suffix.extend((token,))

    def _see(self, context: int, before: int | None, behind: int, row: Prediction) -> None:
        """Keep a prediction for states like the one before the last token of its context."""
        if before is not None and context & ONE != NO_TOKEN:
            self._seen.store(context & ONE, before, behind, row)

    def _store(self, context: int, row: Prediction, known: "_Known") -> None:
        """Write a prediction under the one-, two- and three-token keys of its context.

        Args:
            known: what is kept under the longer ones.
        """
        last = context & ONE
        if last == NO_TOKEN:
            return
        self.memory.store(last, row)
        if context >> TOKEN_BITS & ONE != NO_TOKEN:
            self._contextual.pairs[context & TWO] = kept(row, known.pair)
            if context >> 2 * TOKEN_BITS != NO_TOKEN:
                self._contextual.triples[context] = kept(row, known.triple)


_Child = tuple[float, int, int, float]
"""A candidate for a node's child: probability that it is chosen if its parent is, token, kind of
guess, and what memories or suffix claim that probability to be."""


class _Known(NamedTuple):
    """What a node's two- and three-token keys hold, and what kind of guesses those of all keys are,
    the shortest first."""

    pair: Kept | None
    triple: Kept | None
    first: int
    second: int
    third: int

    @property
    def longest(self) -> int:
        """The kind of the longest key that knows the context."""
        longest, kind = (self.triple, self.third) if self.triple else (self.pair, self.second)
        if longest is None:
            return self.first
        run = longest[1]
        return kind + (STEADY[run] if run < len(STEADY) else STEADY[-1])


class _Expanded(NamedTuple):
    """What may follow a node, best first, what its keys hold, and in what state a target that was
    in one like that before it was behind it."""

    children: list[_Child]
    known: _Known
    state: int | None

    def source(self, child: _Child) -> int:
        """The suffix where it was surer than the memories, else the longest key that knew."""
        _, token, kind, _ = child
        if kind == COPIED:
            return SUFFIX
        pair, triple, first, second, third = self.known
        if triple is not None and token in triple[0].ids:
            return KEYED[third]
        return KEYED[second if pair is not None and token in pair[0].ids else first]


def _numbers(states: NDArray[np.uint64]) -> list[int]:
    """One number a row of [n, WORDS] states."""
    return [int.from_bytes(row.tobytes(), "little") for row in states]


def suffix_trust(options: DrafterOptions, match: int) -> float:
    """Confidence in the token that followed the earlier occurrence of a match of this length."""
    longer = max(match - options.suffix_min_match, 0)
    return 1 - (1 - options.suffix_base) * options.suffix_gain**longer
