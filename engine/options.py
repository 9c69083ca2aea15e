"""Options that decide how tokens are drafted and decoded; each checked where it is made.

Knows no model and no tensor. The defaults of `DrafterOptions` were measured, see the README.
"""

from dataclasses import dataclass
from math import inf

from engine.errors import UsageError

DEFAULT_MAX_TOKENS = 512
MOST_K = 64
"""Next tokens that are kept of a prediction, at most."""


@dataclass(frozen=True, slots=True)
class DrafterOptions:
    """Constants of the RECAP drafter (arXiv 2611.05894; DESIGN section 1).

    Of these its rivals take `k`, `nodes` and `max_depth`; their own constants are their modules'.

    Attributes:
        k: next tokens kept of each prediction.
        nodes: most draft tokens a verify pass carries beside the root; 0 is plain decoding.
        adaptive: whether a tree ends where the measured cost of a pass says that one more node
            would not pay; else it takes `nodes` as far as guesses reach.
        max_depth: longest path of draft tokens.
        min_probability: a candidate whose path probability is below this is not worth a slot.
        specificity: weights of one-, two- and three-token keys when their predictions are fused;
            a key length of weight 0 is not looked up.
        states: weight, beside these, of what was predicted behind the same token in the most
            similar states of the target (`engine.states`); 0: states are not looked at.
        entropy_weighting: whether a key's confidence weighs beside its length.
        suffix: whether the continuations of repeated suffixes are drafted.
        suffix_min_match: shortest repeated suffix whose continuation is drafted, in tokens.
        suffix_base, suffix_gain: confidence in a continuation after a match of m tokens is
            `1 - (1 - suffix_base) * suffix_gain ** (m - suffix_min_match)`.
        seeding: whether the target's predictions inside the prompt fill the memories.
        persistence: whether anything outlives a request.
        phrases: whether two- and three-token keys of earlier requests, too, are looked up where
            this one's do not know a context.
    """

    k: int = 8
    nodes: int = 48
    adaptive: bool = True
    max_depth: int = 16
    min_probability: float = 0.002
    specificity: tuple[float, float, float] = (1.0, 2.0, 4.0)
    states: float = 8.0
    entropy_weighting: bool = True
    suffix: bool = True
    suffix_min_match: int = 2
    suffix_base: float = 0.2
    suffix_gain: float = 0.8
    seeding: bool = True
    persistence: bool = True
    phrases: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (("k", 2, MOST_K), ("nodes", 0, 1024), ("max_depth", 1, 1024)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} must be from {low} to {high}, not {value}")
        if not 0 <= self.min_probability < 1:
            raise UsageError(f"min_probability must be in [0, 1), not {self.min_probability}")
        if len(self.specificity) != 3 or min(self.specificity) < 0:
            raise UsageError("specificity takes three weights that are not negative")
        if not 0 <= self.states < inf:
            raise UsageError(f"states must be a weight of 0 or more, not {self.states}")
        if self.suffix_min_match < 1 or not (
            0 < self.suffix_base <= 1 and 0 < self.suffix_gain < 1
        ):
            raise UsageError("suffix options: min_match >= 1, 0 < base <= 1, 0 < gain < 1")
