"""Every drafting method by its name: how it is made, and the sizes it was published with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.drafters.base import Drafter, PlainDrafter
from engine.drafters.ngram_cache import NgramCacheDrafter
from engine.drafters.prompt_lookup import PromptLookupDrafter
from engine.drafters.racer import RacerDrafter
from engine.drafters.recap import RecapDrafter
from engine.drafters.recycling import TokenRecyclingDrafter
from engine.drafters.sam import SamDrafter, SamRecyclingDrafter
from engine.drafters.suffix_decoding import SuffixDecodingDrafter
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions

Method = Literal[
    "recap",
    "plain",
    "prompt-lookup",
    "token-recycling",
    "suffix",
    "sam",
    "sam-recycling",
    "ngram-cache",
    "racer",
]
"""How tokens are drafted."""


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """What there is to know of a method.

    Attributes:
        make: a drafter of these options, this token memory and these placeholder ids.
        remembers: whether it keeps the target's predictions in the token memory, so that it can
            start from a memory's file.
        published: options of the size that its authors publish.
    """

    make: Callable[[DrafterOptions, TokenMemory, frozenset[int]], Drafter]
    remembers: bool
    published: DrafterOptions


METHODS: dict[Method, MethodEntry] = {
    "recap": MethodEntry(RecapDrafter, True, DrafterOptions()),
    "plain": MethodEntry(lambda *_: PlainDrafter(), False, DrafterOptions(nodes=0)),
    "prompt-lookup": MethodEntry(
        lambda options, _, placeholders: PromptLookupDrafter(options, placeholders),
        False,
        DrafterOptions(nodes=10),
    ),
    "token-recycling": MethodEntry(TokenRecyclingDrafter, True, DrafterOptions(nodes=80)),
    "suffix": MethodEntry(
        lambda options, _, placeholders: SuffixDecodingDrafter(options, placeholders),
        False,
        DrafterOptions(nodes=64, max_depth=64),
    ),
    "sam": MethodEntry(
        lambda options, _, placeholders: SamDrafter(options, placeholders),
        False,
        DrafterOptions(nodes=59, max_depth=59),
    ),
    "sam-recycling": MethodEntry(SamRecyclingDrafter, True, DrafterOptions(nodes=80, max_depth=39)),
    "ngram-cache": MethodEntry(
        lambda options, _, placeholders: NgramCacheDrafter(options, placeholders),
        False,
        DrafterOptions(nodes=16),
    ),
    "racer": MethodEntry(RacerDrafter, True, DrafterOptions(nodes=63)),
}
