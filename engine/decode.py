"""The decoding loop: draft, verify, accept, keep, learn, yield.

Plain autoregressive decoding is the same loop with trees of one node. Whatever a drafter proposes,
the tokens are those that the target alone would have chosen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.drafters.base import Drafter
from engine.logits import GreedyRules, predict
from engine.stats import DecodeStats
from engine.tree import DraftTree, accepted_path

SEED_CHUNK = 64
"""Prompt positions whose logits are computed at a time: 40 MB in float32 at 152k vocabulary."""


class Cancel(Protocol):
    """Asked between passes; `threading.Event` fits."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class PrefilledTarget(Protocol):
    """What the loop needs of a target whose prompt has been prefilled."""

    def prompt_logits(self, positions: Sequence[int]) -> Tensor:
        """[m, vocab] float32 after these positions of the prompt."""
        ...

    def verify(self, tree: DraftTree) -> Tensor:
        """[n, vocab] float32, one row a node."""
        ...

    def prompt_states(self) -> NDArray[np.uint64]:
        """[m, WORDS] at all positions of the prompt."""
        ...

    @property
    def hidden(self) -> Tensor:
        """[n, width] of what the logits of the last pass were made."""
        ...

    def exact(self, path: list[int]) -> list[int]:
        """As much of an accepted path as may be committed, the root at least."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Commit these nodes of the tree that was verified last."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """When an answer ends: after `max_tokens`, or with the first of `stop_ids`.

    `ends`, where there is one, is told every token of the answer in order, and cuts a pass behind
    the token for which it is true; not going on after that is left to the caller.
    """

    max_tokens: int
    stop_ids: frozenset[int]
    ends: Callable[[int], bool] | None = None

    def until_end(self, tokens: list[int]) -> list[int]:
        """Newly chosen tokens up to the one that ends the answer, which is included."""
        for i, token in enumerate(tokens):
            ended = self.ends is not None and self.ends(token)
            if ended or token in self.stop_ids:
                return tokens[: i + 1]
        return tokens


def decode(
    target: PrefilledTarget,
    drafter: Drafter,
    rules: GreedyRules,
    history: list[int],
    limits: Limits,
    stats: DecodeStats,
    cancel: Cancel | None = None,
) -> Iterator[list[int]]:
    """Decode greedily behind the first token; yield what each pass commits.

    Args:
        history: token ids of the prompt, placeholders included, and the first token, which the
            prefill chose; grows by what is committed.
        stats: updated before each yield. Time that the consumer takes is not counted.
    """
    while not _ended(history[-1], stats, limits) and not (cancel and cancel.is_set()):
        started = perf_counter()
        tree = drafter.propose(limits.max_tokens - stats.new_tokens - 1)
        drafted = perf_counter()
        logits = rules.apply(target.verify(tree), tree, history)
        predictions = predict(logits, drafter.k, target.hidden if drafter.states else None)
        path = target.exact(accepted_path(tree, predictions.choices))
        committed = limits.until_end([predictions.choices[node] for node in path])
        path = path[: len(committed)]
        target.keep(path)
        verified = perf_counter()
        drafter.learn(path, predictions)
        drafter.observe(committed)
        history += committed
        stats.count_pass(tree, path, len(committed))
        finished = perf_counter()
        stats.draft_s += drafted - started + finished - verified
        stats.decode_s += finished - started
        yield committed


def seed(
    target: PrefilledTarget, drafter: Drafter, prompt: Sequence[int], placeholders: frozenset[int]
) -> None:
    """Show the drafter what it wants to see of the target in the prompt: its states, and what it
    predicts at as many text positions, the last.

    The very last position is left out: its prediction is the first token, which is already known.
    """
    if drafter.states:
        drafter.recognise(target.prompt_states())
    if not drafter.seeds:
        return
    positions = [i for i, token in enumerate(prompt[:-1]) if token not in placeholders]
    positions = positions[-drafter.seeds :]
    for start in range(0, len(positions), SEED_CHUNK):
        chunk = positions[start : start + SEED_CHUNK]
        drafter.seed(chunk, predict(target.prompt_logits(chunk), drafter.k))


def _ended(last: int, stats: DecodeStats, limits: Limits) -> bool:
    return last in limits.stop_ids or stats.new_tokens >= limits.max_tokens
