"""Who takes part in a benchmark: a method and its options, written `METHOD[:PART]...`.

`recap`, `racer:32`, `recap:16:no-suffix`, `suffix:64:max_depth=32`. A number is the draft tokens of
a pass, `NAME=VALUE` any option of `DrafterOptions` that is one number; only RECAP has `adaptive`,
which lets measured cost decide the size, and `ABLATIONS`. Knows no model and runs nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from engine.bench.document import CONTROL, GENERATE, PLAIN, ContenderRow, StartedFrom
from engine.drafters.registry import METHODS
from engine.errors import UsageError
from engine.options import DrafterOptions

GENERATE_LOOKUP = "transformers-lookup"
"""`generate(do_sample=False)` of transformers with `prompt_lookup_num_tokens`."""
ALWAYS = (PLAIN, CONTROL, GENERATE)
DEFAULT = (
    GENERATE_LOOKUP,
    "prompt-lookup",
    "token-recycling",
    "suffix",
    "sam",
    "sam-recycling",
    "ngram-cache",
    "racer",
    "recap",
)
"""Who takes part, besides those who always do, where nobody is named."""

ABLATIONS: dict[str, dict[str, Any]] = {
    "one-token": {"specificity": (1.0, 0.0, 0.0), "states": 0.0, "suffix": False},
    "no-long-keys": {"specificity": (1.0, 0.0, 0.0)},
    "no-states": {"states": 0.0},
    "no-suffix": {"suffix": False},
    "no-entropy": {"entropy_weighting": False},
    "no-persistence": {"persistence": False},
    "no-phrases": {"phrases": False},
    "no-seeding": {"seeding": False},
}
"""RECAP without: all but its one-token keys; its two- and three-token keys; and so on."""

GROUPS = {"default": DEFAULT, "ablations": tuple(f"recap:{name}" for name in ABLATIONS)}

_LOOKUP = DrafterOptions(nodes=10)
_FORGETFUL = (PLAIN, GENERATE, GENERATE_LOOKUP, "prompt-lookup", "sam")
_NUMBERS: dict[str, Callable[[str], int | float]] = {
    option.name: option.type for option in fields(DrafterOptions) if option.type in (int, float)
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the table.

    Attributes:
        name: as it was written, the size in one form.
        method: of `METHODS`, or `GENERATE` or `GENERATE_LOOKUP`.
        options: of its drafter; of `GENERATE_LOOKUP` only `nodes` counts.
    """

    name: str
    method: str
    options: DrafterOptions

    @property
    def foreign(self) -> bool:
        """Whether it runs outside our loop."""
        return self.method not in METHODS

    @property
    def takes_file(self) -> bool:
        """Whether it can start from a token memory's file."""
        entry = METHODS.get(self.method)  # type: ignore[call-overload]
        return entry is not None and entry.remembers and self.options.persistence

    def starts(self, memory_start: str) -> StartedFrom:
        """What it knows when a repetition begins; `memory_start` is `cold`, `warm` or a file."""
        if self.method in _FORGETFUL or not self.options.persistence:
            return "none"
        if memory_start == "warm":
            return "warm"
        return "cold" if memory_start == "cold" or not self.takes_file else "file"

    def row(self, memory_start: str) -> ContenderRow:
        """What the document says of it."""
        usual = asdict(DrafterOptions())
        ours = asdict(self.options)
        return {
            "name": self.name,
            "method": self.method,
            "options": {name: ours[name] for name in ours if ours[name] != usual[name]},
            "memory": self.starts(memory_start),
            "failed": None,
        }


def contenders(named: Sequence[str], sizes: Sequence[int] = ()) -> list[Contender]:
    """Who takes part: those who always do, those who are named, and these once a size more.

    Args:
        named: contenders as they are written, or `GROUPS`; nobody is the default group.
        sizes: draft tokens of a pass that everybody who drafts, and has no size in its name, is
            also given.

    Raises:
        UsageError: there is no such method or part, it does not fit, or is named twice.
    """
    chosen = [each for name in named or ("default",) for each in GROUPS.get(name, (name,))]
    specs = [*(name for name in ALWAYS if name not in chosen), *chosen]
    found = list(_with_sizes(map(_parse, specs), sizes))
    names = [contender.name for contender in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"{twice} takes part twice; name it once")
    return found


def _with_sizes(named: Iterable[Contender], sizes: Sequence[int]) -> Iterator[Contender]:
    for contender in named:
        yield contender
        if contender.method not in ALWAYS and not _sized(contender.name):
            yield from (_parse(f"{contender.name}:{size}") for size in sizes)


def _sized(name: str) -> bool:
    return any(part.isdecimal() for part in name.split(":"))


def _parse(spec: str) -> Contender:
    method, *parts = spec.split(":")
    parts = [part.removeprefix("nodes=") for part in parts]
    name = ":".join([method, *parts])
    if method in ALWAYS and not parts:
        own = DrafterOptions(nodes=0)
        return Contender(name, PLAIN if method == CONTROL else method, own)
    if method == GENERATE_LOOKUP and all(part.isdecimal() for part in parts):
        options = _LOOKUP
    elif method in METHODS and method not in ALWAYS:
        options = METHODS[method].published
    else:
        raise UsageError(_what_is_wrong(method))
    for part in parts:
        options = replace(options, **_changes(part, method, options))
    return Contender(name, method, options)


def _changes(part: str, method: str, options: DrafterOptions) -> dict[str, Any]:
    """The options that one part of a name means."""
    if part.isdecimal():
        # A method that drafts one chain drafts one at any size.
        chain = options.max_depth >= options.nodes
        depth = max(options.max_depth, int(part)) if chain else options.max_depth
        return {"nodes": int(part), "adaptive": False, "max_depth": depth}
    if method == "recap" and (part == "adaptive" or part in ABLATIONS):
        return ABLATIONS.get(part, {"adaptive": True})
    name, _, value = part.partition("=")
    try:
        return {name: _NUMBERS[name](value)}
    except (KeyError, ValueError) as error:
        words = ["adaptive", *ABLATIONS] if method == "recap" else []
        known = ", ".join([*words, *(f"{number}=N" for number in _NUMBERS)])
        raise UsageError(f"{method}:{part}: give a size, or one of {known}") from error


def _what_is_wrong(method: str) -> str:
    if method in (*ALWAYS, GENERATE_LOOKUP):
        return f"{method} takes no options" + (" but a size" if method == GENERATE_LOOKUP else "")
    known = ", ".join([*GROUPS, *METHODS, GENERATE, GENERATE_LOOKUP])
    return f"no method {method!r}; choose from {known}"
