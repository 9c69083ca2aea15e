"""RECAP (arXiv 2611.05894): the target's own predictions, recycled into a tree of guesses.

Contextual memory under two- and three-token keys, token memory under one-token keys, fusion,
best-first search and suffix continuations; DESIGN section 1 tells the method. The hot path is
plain Python over small lists.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from time import perf_counter
from typing import NamedTuple

from engine.budget import Calibration, PassCost
from engine.fusion import Retrieved, fuse
from engine.logits import Predictions
from engine.memory.transitions import (
    NO_CONTEXT,
    NO_TOKEN,
    ONE,
    THREE,
    TOKEN_BITS,
    TWO,
    ContextualMemory,
    TokenMemory,
    predictions_of,
)
from engine.options import DrafterOptions
from engine.stats import SOURCES
from engine.suffix import SuffixIndex
from engine.tree import DraftTree

KEYED = tuple(SOURCES.index(name) for name in ("token", "contextual-2", "contextual-3"))
SUFFIX = SOURCES.index("suffix")
NO_MATCH = (-1, 0)
UNSEEN = -1
LONGEST_TRUST = 64
COPIED = 3
"""The kind of guess that a repeated suffix makes; 0 to 2 are those of one- to three-token keys."""
PRIOR_TRUST = (0.4, 0.6, 0.75, 0.85)
"""The share of each kind's claims that held on text (SmolLM2-135M, Spec-Bench)."""


class RecapDrafter:
    """The RECAP drafter of one session; its token memory outlives requests."""

    def __init__(
        self, options: DrafterOptions, memory: TokenMemory, placeholders: frozenset[int]
    ) -> None:
        """`placeholders`: ids of image and video features, never keyed, drafted or matched."""
        self.options = options
        self.memory = memory
        self._placeholders = placeholders
        self._cost = PassCost()
        self._calibration = Calibration(PRIOR_TRUST)
        self._began = 0.0
        self._trust = [_suffix_trust(options, match) for match in range(LONGEST_TRUST + 1)]
        self.start(())

    @property
    def k(self) -> int:
        """Predictions kept of every node."""
        return self.options.k

    @property
    def contextual_keys(self) -> int:
        """Keys of two and three tokens in the contextual memory."""
        return len(self._contextual.pairs) + len(self._contextual.triples)

    @property
    def seeds(self) -> bool:
        """Whether predictions inside the prompt fill the memories."""
        return self.options.seeding

    def start(self, prompt: Sequence[int]) -> None:
        """Drop the contextual memory and read the prompt."""
        if not self.options.persistence:
            self.memory = TokenMemory()
        self._contextual = ContextualMemory()
        self.resume((), prompt)

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Read the conversation as it stands now; its contextual memory stays."""
        self._suffix = SuffixIndex()
        self._context = NO_CONTEXT
        self._last = NO_TOKEN
        self._tree_contexts: list[int] = []
        self._tree_claims: list[tuple[int, int, float]] = []
        self._prompt_contexts: list[int] = []
        self.observe(kept)
        for token in new:
            self._read(token)
            self._prompt_contexts.append(self._context)

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """Learn what the target predicts inside the prompt."""
        contexts = [self._prompt_contexts[position] for position in positions]
        self._store(contexts, range(len(contexts)), predictions)

    def observe(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        for token in tokens:
            self._read(token)

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Write back every node's prediction; the accepted path last, so that it prevails."""
        self._cost.observe(len(self._tree_contexts), perf_counter() - self._began)
        accepted = set(path)
        for node, (parent, kind, claim) in enumerate(self._tree_claims, start=1):
            if parent in accepted:
                self._calibration.observe(kind, claim, node in accepted)
        rejected = (node for node in range(len(self._tree_contexts)) if node not in accepted)
        self._store(self._tree_contexts, [*rejected, *path], predictions)

    def propose(self, max_depth: int) -> DraftTree:
        """Best-first search for the paths that are most likely to be accepted.

        It ends where one more node would not raise the expected tokens per second or, with a
        budget that is fixed, where that is spent.

        The heap holds candidates as (minus path probability, parent, rank among its children): of
        every parent the best that is not yet in the tree. Rank -1 stands for a node's children
        that were not looked up yet; none of them can be likelier than the node itself.
        """
        self._began = perf_counter()
        budget, floor = self.options.nodes, self.options.min_probability
        fixed = not self.options.adaptive
        max_depth = min(max_depth, self.options.max_depth)
        tree = DraftTree([self._last])
        self._tree_contexts = contexts = [self._context]
        self._tree_claims = claims = []
        expected = 1.0
        matches = [(self._suffix.match_end, self._suffix.match_length)]
        children: dict[int, _Children] = {}
        heap = [(-1.0, 0, UNSEEN)] if max_depth > 0 else []
        while heap and len(tree) <= budget:
            reached, parent, rank = heappop(heap)
            if not fixed and -reached < self._cost.floor(expected, len(tree)):
                break
            if rank == UNSEEN:
                children[parent] = self._retrieve(contexts[parent], *matches[parent])
            else:
                _, token, kind, claim = children[parent].candidates[rank]
                if token not in self._placeholders:
                    node = tree.add(token, parent, children[parent].source(rank), -reached)
                    claims.append((parent, kind, claim))
                    expected -= reached
                    contexts.append((contexts[parent] << TOKEN_BITS | token) & THREE)
                    matches.append(self._follow(token, *matches[parent]))
                    if tree.depths[node] < max_depth:
                        heappush(heap, (reached, node, UNSEEN))
            rank += 1
            candidates = children[parent].candidates
            if rank < len(candidates):
                probability = tree.probabilities[parent] * candidates[rank].survival
                if probability > floor:
                    heappush(heap, (-probability, parent, rank))
        return tree

    def _retrieve(self, context: int, match_end: int, match_length: int) -> "_Children":
        """Look a node's three keys up and fuse what they hold with the suffix's continuation."""
        contextual, options = self._contextual, self.options
        one, two, three = options.specificity
        retrieved = (
            self.memory.recall(context & ONE) if one else None,
            contextual.pairs.get(context & TWO) if two else None,
            contextual.triples.get(context) if three else None,
        )
        copied = (0.0, NO_TOKEN)
        repeated = options.suffix and match_length >= options.suffix_min_match
        if repeated and match_end < len(self._suffix.text):
            follower = self._suffix.text[match_end]
            if follower >= 0:
                copied = (self._trust[min(match_length, LONGEST_TRUST)], follower)
        fused = fuse(retrieved, options.specificity, copied, options.entropy_weighting)
        longest = max((i for i, row in enumerate(retrieved) if row), default=0)
        survival = self._calibration.survival
        candidates = []
        for claim, token in fused:
            kind = COPIED if (claim, token) == copied else longest
            if claim > 0:
                candidates.append(_Child(survival(kind, claim), token, kind, claim))
        candidates.sort(reverse=True)
        return _Children(retrieved, candidates)

    def _follow(self, token: int, match_end: int, match_length: int) -> tuple[int, int]:
        """The match of a node's child: one longer if the child goes on like the earlier text."""
        text = self._suffix.text
        if match_length and match_end < len(text) and text[match_end] == token:
            return match_end + 1, match_length + 1
        return NO_MATCH

    def _read(self, token: int) -> None:
        self._last = token
        if token in self._placeholders:
            if self._context != NO_CONTEXT:
                # A separator that occurs nowhere else, so that no match crosses a picture.
                self._suffix.extend((-1 - len(self._suffix.text),))
            self._context = NO_CONTEXT
        else:
            self._context = (self._context << TOKEN_BITS | token) & THREE
            self._suffix.extend((token,))

    def _store(
        self, contexts: Sequence[int], order: Iterable[int], predictions: Predictions
    ) -> None:
        """Write predictions under the one-, two- and three-token keys of their contexts."""
        rows = predictions_of(predictions.top_ids, predictions.top_probs)
        pairs, triples, tokens = self._contextual.pairs, self._contextual.triples, self.memory
        for i in order:
            context, row = contexts[i], rows[i]
            if context & ONE == NO_TOKEN:
                continue
            tokens.store(context & ONE, row)
            if context >> TOKEN_BITS & ONE != NO_TOKEN:
                pairs[context & TWO] = row
                if context >> 2 * TOKEN_BITS != NO_TOKEN:
                    triples[context] = row


class _Child(NamedTuple):
    """A candidate for a node's child: `claim` is what memories or suffix say of its probability."""

    survival: float
    token: int
    kind: int
    claim: float


class _Children(NamedTuple):
    """The candidates for a node's children, likeliest first, and what its keys hold."""

    retrieved: Retrieved
    candidates: list[_Child]

    def source(self, rank: int) -> int:
        """The suffix where it was surer than the memories, else the longest key that knew."""
        child = self.candidates[rank]
        if child.kind == COPIED:
            return SUFFIX
        known = (i for i in (2, 1, 0) if (row := self.retrieved[i]) and child.token in row.ids)
        return KEYED[next(known)]


def _suffix_trust(options: DrafterOptions, match: int) -> float:
    """Confidence in the token that followed the earlier occurrence of a match of this length."""
    longer = max(match - options.suffix_min_match, 0)
    return 1 - (1 - options.suffix_base) * options.suffix_gain**longer
