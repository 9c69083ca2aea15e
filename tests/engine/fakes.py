"""Stand-ins for a model and for drafters, so that the decoding loop is testable without weights."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig

from engine.decode import Cancel, Limits, PrefilledTarget, decode
from engine.drafters.base import Drafter
from engine.logits import GreedyRules, Predictions
from engine.states import states_of
from engine.stats import DecodeStats
from engine.tree import DraftTree

Text = tuple[int, ...]


class FakeTarget:
    """A target that is any function from a text to the next token's logits.

    It honours the contract of a real one: a node sees the committed text and its own ancestors,
    nothing else, and only `keep` commits. `passes` and `seen` record what was asked of it.
    """

    def __init__(self, logits_after: Callable[[Text], Tensor], prompt: Sequence[int]) -> None:
        self.logits_after = logits_after
        self.committed = list(prompt)
        self.trees: list[DraftTree] = []
        self.logits: list[Tensor] = []
        self.asked: list[int] = []
        self._prompt = tuple(prompt)

    def prompt_logits(self, positions: Sequence[int]) -> Tensor:
        self.asked += positions
        return torch.stack([self.logits_after(self._prompt[: at + 1]) for at in positions])

    def verify(self, tree: DraftTree) -> Tensor:
        self.trees.append(tree)
        texts: list[Text] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            above = tuple(self.committed) if parent < 0 else texts[parent]
            texts.append((*above, token))
        self.logits.append(torch.stack([self.logits_after(text) for text in texts]))
        return self.logits[-1]

    def prompt_states(self) -> NDArray[np.uint64]:
        return states_of(self.prompt_logits(range(len(self._prompt))))

    @property
    def hidden(self) -> Tensor:
        return self.logits[-1]

    def exact(self, path: list[int]) -> list[int]:
        return path

    def keep(self, path: Sequence[int]) -> None:
        self.committed += [self.trees[-1].tokens[node] for node in path]


def markov(vocab: int, order: int, seed: int = 0) -> Callable[[Text], Tensor]:
    """Logits that depend on the last `order` tokens only, so that texts run into cycles."""

    def logits_after(text: Text) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *text[-order:])) % 2**31)
        return torch.randn(vocab, generator=generator) * 3

    return logits_after


def greedy(
    logits_after: Callable[[Text], Tensor], prompt: Sequence[int], max_tokens: int, stop: int = -1
) -> list[int]:
    """What the function alone answers, token by token."""
    answer: list[int] = []
    while len(answer) < max_tokens and stop not in answer:
        answer.append(int(logits_after((*prompt, *answer)).argmax()))
    return answer


def no_rules() -> GreedyRules:
    """Plain argmax."""
    return GreedyRules(GenerationConfig(), ())


def answered(
    target: PrefilledTarget,
    drafter: Drafter,
    prompt: Sequence[int],
    first: int,
    limits: Limits,
    rules: GreedyRules | None = None,
    stats: DecodeStats | None = None,
    cancel: Cancel | None = None,
) -> list[list[int]]:
    """Run the decoding loop behind `first`; what each pass committed."""
    stats = stats or DecodeStats()
    stats.new_tokens = 1
    drafter.start(prompt)
    drafter.observe([first])
    return list(
        decode(target, drafter, rules or no_rules(), [*prompt, first], limits, stats, cancel)
    )


class Scripted:
    """A drafter whose trees a test writes; it learns nothing and remembers what it was told."""

    k = 2
    seeds = 0
    states = False

    def __init__(self, grow: Callable[[DraftTree, Text, int], None]) -> None:
        """`grow(tree, text, max_depth)` adds nodes to a tree on the last token of the text."""
        self._grow = grow
        self.text: list[int] = []
        self.depths_asked: list[int] = []
        self.learned: list[tuple[list[int], Predictions]] = []
        self.recognised: list[NDArray[np.uint64]] = []

    def start(self, prompt: Sequence[int]) -> None:
        self.text = list(prompt)

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        self.start([*kept, *new])

    def recognise(self, states: NDArray[np.uint64]) -> None:
        assert self.states, "wants none"
        self.recognised.append(states)

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        raise AssertionError("seeds nothing")

    def observe(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def propose(self, max_depth: int) -> DraftTree:
        self.depths_asked.append(max_depth)
        tree = DraftTree([self.text[-1]])
        self._grow(tree, tuple(self.text), max_depth)
        assert max(tree.depths) <= max_depth, "the script wrote too deep a tree"
        return tree

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        self.learned.append((list(path), predictions))


def oracle(answer: Sequence[int], prompt_tokens: int) -> Callable[[DraftTree, Text, int], None]:
    """Drafts what will be answered as one chain: every draft is right."""

    def grow(tree: DraftTree, text: Text, max_depth: int) -> None:
        rest = answer[len(text) - prompt_tokens :][:max_depth]
        parent = 0
        for token in rest:
            parent = tree.add(token, parent, 0, 1.0)

    return grow


def saboteur(
    answer: Sequence[int], prompt_tokens: int, vocab: int, seed: int = 0
) -> Callable[[DraftTree, Text, int], None]:
    """Hides right tokens among wrong ones: bushy, deep and misleading trees of any token at all.

    Wrong nodes repeat right tokens at wrong places, which a wrong mask or position would accept.
    """
    chance = random.Random(seed)

    def grow(tree: DraftTree, text: Text, max_depth: int) -> None:
        rest = list(answer[len(text) - prompt_tokens :])
        for _ in range(chance.choice((0, 1, 5, 40))):
            parent = chance.randrange(len(tree))
            depth = tree.depths[parent]
            siblings = {t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == parent}
            token = chance.choice([*rest[depth : depth + 1] * 4, *rest, chance.randrange(vocab)])
            if depth < max_depth and token not in siblings:
                tree.add(token, parent, chance.randrange(4), chance.random())

    return grow
