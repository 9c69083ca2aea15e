"""What a verify pass costs, by tokens in it and by tokens before it.

Measures a target as the decoding loop uses it, with trees of random tokens. Which size of a tree
pays is `payoff`'s business.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter

import torch

from engine.compiled import require_compiler
from engine.device_memory import within_memory
from engine.errors import ModelError, UsageError
from engine.loading import Device, Dtype, load_model
from engine.logits import predict
from engine.options import DrafterOptions
from engine.preparing import use_operators
from engine.prompts import EncodedPrompt
from engine.random_weights import random_model
from engine.target import Target
from engine.tree import DraftTree

WARMUP = 3
"""Rounds over all sizes that are not counted: they allocate, compile and wake the machine up."""

TOP_K = DrafterOptions().k
"""Next tokens of which the loop wants the probabilities."""


@dataclass(frozen=True, slots=True)
class CostOptions:
    """What is measured.

    Attributes:
        sizes: tokens in a pass, root included; ascending, and 1 is always among them, since the
            others are compared with it.
        contexts: tokens before the tree; ascending.
        repeats: counted passes of each size in each context.
        seed: of the random tokens, and of the order of sizes.
    """

    sizes: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    contexts: tuple[int, ...] = (512, 2048)
    repeats: int = 20
    seed: int = 42

    def __post_init__(self) -> None:
        if not self.sizes or not self.contexts or min(*self.sizes, *self.contexts, 1) < 1:
            raise UsageError("sizes of passes and contexts are numbers from 1 on, at least one")
        if self.repeats < 2:
            raise UsageError(f"a pass is repeated at least twice, not {self.repeats} times")
        for name, numbers in (("sizes", {1, *self.sizes}), ("contexts", {*self.contexts})):
            object.__setattr__(self, name, tuple(sorted(numbers)))

    def within(self, context_length: int | None) -> "CostOptions":
        """The same with contexts cut to what the model can attend to beside the largest pass."""
        if context_length is None:
            return self
        most = context_length - self.sizes[-1]
        if most < 1:
            raise UsageError(
                f"a pass of {self.sizes[-1]} tokens does not fit into the model's context of "
                f"{context_length}; name smaller sizes"
            )
        contexts = tuple(min(context, most) for context in self.contexts)
        return CostOptions(self.sizes, contexts, self.repeats, self.seed)

    @property
    def passes(self) -> int:
        """How many are counted."""
        return self.repeats * len(self.sizes) * len(self.contexts)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model whose passes are timed.

    Attributes:
        name: of the model or of its config.
        target: runs it.
        avoid: ids that stand for pictures, not to be among random tokens.
        context_length: tokens that it can attend to; None where its config does not say.
    """

    name: str
    target: Target
    avoid: frozenset[int]
    context_length: int | None


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass over `tokens` tokens behind `context` others."""

    context: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Passes of one size in one context; times in milliseconds.

    Attributes:
        context, tokens: before the tree, and in it with its root.
        ms, ms_q1, ms_q3: median and quartiles.
        passes: how many were timed.
        ratio: to the median of passes of one token in this context.
        marginal: what each token beyond the next smaller size costs, in passes of one token; None
            for the smallest size. A guess pays if it comes true more often than this times the
            speed-up that the smaller tree gives, so in any case not below this.
    """

    context: int
    tokens: int
    ms: float
    ms_q1: float
    ms_q3: float
    passes: int
    ratio: float
    marginal: float | None


def open_subject(
    name: str,
    device: Device,
    dtype: Dtype,
    *,
    random_weights: bool,
    compile: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Subject:
    """Load a model or, with `random_weights`, make one of its config; compile its passes if asked.

    `say` is told what takes its time.

    Raises:
        UsageError, ModelError: see `engine.loading.load_model` and `engine.random_weights`; or
            passes cannot be compiled.
    """
    if random_weights:
        model, family = random_model(name, device, dtype)
    else:
        loaded = load_model(name, device, dtype)
        name, model, family = loaded.name, loaded.model, loaded.family
    target = Target(model, family)
    if compile:
        require_compiler(target.device)
        target.compile()
    else:
        for notice in use_operators(target):
            say(notice.message)
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return Subject(name, target, family.placeholder_ids(model.config), length)


def time_passes(subject: Subject, options: CostOptions) -> Iterator[PassTime]:
    """Measure; yield each counted pass as soon as it is done.

    A pass is what the decoding loop waits for: mask, forward, logits, and the top k of them in the
    CPU's memory, so that a GPU has finished. Nothing is kept, so that the context stays as long.
    It is filled by a prefill of random tokens. In each round all sizes have their turn, in an order
    drawn anew, so that a machine that changes its speed changes it for all of them.

    Raises:
        ModelError: the device's memory does not suffice.
    """
    rng = random.Random(options.seed)
    target = subject.target
    size = target.model.config.get_text_config().vocab_size
    vocabulary = sorted(set(range(size)) - subject.avoid)
    trees = {tokens: _tree(rng.choices(vocabulary, k=tokens)) for tokens in options.sizes}
    for context in options.contexts:
        failure = ModelError(
            f"the device ran out of memory behind {context} tokens; name shorter contexts, or "
            "a smaller model"
        )
        with within_memory(failure):
            _fill(target, rng.choices(vocabulary, k=context), room=options.sizes[-1])
            yield from _rounds(target, trees, context, options.repeats, rng)


def cost_points(times: Iterable[PassTime]) -> list[CostPoint]:
    """Summarise, by context and size; contexts without two passes of one token are left out."""
    by_context: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for time in times:
        by_context[time.context][time.tokens].append(1e3 * time.seconds)
    points: list[CostPoint] = []
    for context, by_size in sorted(by_context.items()):
        if len(by_size.get(1, [])) > 1:
            points += _points(context, by_size)
    return points


def _points(context: int, by_size: dict[int, list[float]]) -> Iterator[CostPoint]:
    one = quantiles(by_size[1], method="inclusive")[1]
    smaller: tuple[int, float] | None = None
    for tokens, times in sorted(by_size.items()):
        if len(times) < 2:
            continue
        low, middle, high = quantiles(times, method="inclusive")
        marginal = None
        if smaller is not None:
            marginal = (middle - smaller[1]) / (tokens - smaller[0]) / one
        yield CostPoint(context, tokens, middle, low, high, len(times), middle / one, marginal)
        smaller = (tokens, middle)


def _rounds(
    target: Target,
    trees: Mapping[int, DraftTree],
    context: int,
    repeats: int,
    rng: random.Random,
) -> Iterator[PassTime]:
    """All sizes in an order drawn anew, round after round."""
    for round_ in range(-WARMUP, repeats):
        for tokens in rng.sample(list(trees), len(trees)):
            time = PassTime(context, tokens, _seconds(target, trees[tokens]))
            if round_ >= 0:
                yield time


def _fill(target: Target, tokens: Sequence[int], room: int) -> None:
    """Make these tokens the context."""
    target.prefill(EncodedPrompt(torch.tensor([tokens]), {}, 0, ""), room)
    target.forget_prompt()


def _seconds(target: Target, tree: DraftTree) -> float:
    started = perf_counter()
    predict(target.verify(tree), TOP_K)
    return perf_counter() - started


def _tree(tokens: Sequence[int]) -> DraftTree:
    """A chain whose nodes have two more children each, as long as tokens go.

    The shape changes little: how far apart keys are.
    """
    tree = DraftTree([tokens[0]])
    for i, token in enumerate(tokens[1:]):
        tree.add(token, i // 3 * 3, 0, 0.5)
    return tree
