"""Benchmark documents made by hand, and a whole one as a run would write it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.document import FORMAT, Document, Record
from engine.stats import SOURCES, DecodeStats
from engine.tree import DraftTree

SUFFIX = SOURCES.index("suffix")


def record(
    contender: str,
    task: str = "a",
    *,
    category: str = "one",
    turn: int = 0,
    repetition: int = 0,
    commits: Sequence[int] = (1, 1),
    nodes: int = 0,
    depth: int = 0,
    sources: Sequence[int] = (SUFFIX,),
    draft_s: float = 0.0,
    decode_s: float = 1.0,
    total_s: float = 2.0,
    difference: tuple[int, float | None] | None = None,
    **others: Any,
) -> Record:
    """An answer's record; the first token comes from the prefill, the others as `commits` says.

    Args:
        nodes, depth: of each pass's tree: a chain of `depth`, or as deep as was accepted, the rest
            siblings of its first node.
        sources: where the trees' nodes came from, a tree each, in turn.
        others: keys of the record.
    """
    stats = DecodeStats(new_tokens=1, decode_s=decode_s, draft_s=draft_s)
    for number, commit in enumerate(commits):
        tree = _tree(max(nodes, commit - 1), max(depth, commit - 1), sources[number % len(sources)])
        stats.count_pass(tree, range(commit), commit)
    token_ids = list(range(stats.new_tokens))
    if difference:
        token_ids[difference[0] :] = [0]
    found: dict[str, Any] = {
        "contender": contender,
        "task": task,
        "category": category,
        "turn": turn,
        "repetition": repetition,
        "error": None,
        "token_ids": token_ids,
        "finish_reason": "stop",
        "prompt_tokens": 9,
        "image_tokens": 0,
        "total_s": total_s,
        "peak_memory_bytes": None,
        "peak_gpu_memory_bytes": None,
        "committed": list(commits),
        "difference": difference and dict(zip(("position", "gap"), difference, strict=True)),
        **stats.measures(),
        **others,
    }
    return found  # type: ignore[return-value]


def _tree(nodes: int, depth: int, source: int) -> DraftTree:
    tree = DraftTree([0])
    for node in range(nodes):
        tree.add(node, node if node < depth else 0, source, 0.5)
    return tree


def failed(contender: str, task: str = "a", error: str = "it broke", **others: Any) -> Record:
    """The record of a request that failed."""
    unknown = ("token_ids", "finish_reason", "total_s", "committed")
    nothing: Any = dict.fromkeys((*unknown, *DecodeStats().measures()))
    return {**record(contender, task, error=error, **others), **nothing}


def outside(contender: str, task: str = "a", **others: Any) -> Record:
    """A record of what runs outside our loop, so that its drafts cannot be seen."""
    seen = ("new_tokens", "passes", "mean_acceptance_length", "ttft_s", "decode_s", "ms_per_pass")
    hidden: Any = dict.fromkeys(DecodeStats().measures().keys() - set(seen))
    return {**record(contender, task, **others), **hidden}


def document(*records: Record, failures: dict[str, str] | None = None) -> Document:
    """A document of these records; `failures` are contenders that answered nothing, and why."""
    reasons: dict[str, str | None] = dict.fromkeys(record["contender"] for record in records)
    reasons |= failures or {}
    tasks = {record["task"]: record for record in records}
    return {
        "format": FORMAT,
        "machine": {
            "cpu": "A CPU",
            "cores": 2,
            "threads": 2,
            "memory_bytes": 8 * 2**30,
            "platform": "Linux 6.8 x86_64",
            "gpu": None,
        },
        "versions": {"python": "3.11.9", "recap": "0.1.0", "torch": "2.13.0", "transformers": None},
        "settings": {
            "model": "some/model",
            "device": "cpu",
            "dtype": "bfloat16",
            "compile": False,
            "operators": False,
            "max_tokens": 128,
            "repetitions": 1 + max((record["repetition"] for record in records), default=0),
            "warmup": 1,
            "memory_start": "cold",
            "workload": "prompts.jsonl",
            "prompts": "0123456789abcdef",
            "turns": "first",
            "peak_memory": "request",
            "started": "2026-01-02T03:04:05+00:00",
        },
        "contenders": [
            {"name": name, "method": name, "options": {}, "memory": "none", "failed": reason}
            for name, reason in reasons.items()
        ],
        "tasks": [
            {"id": task, "category": record["category"], "turns": 1}
            for task, record in tasks.items()
        ],
        "records": list(records),
    }


@dataclass(frozen=True)
class Character:
    """How a contender of a whole document behaves.

    `hit` is the chance that the next token was drafted; `cost` what a node adds to a pass of 1.
    """

    hit: float
    nodes: int
    cost: float
    sources: Sequence[int] = (SUFFIX,)


CATEGORIES = ("math_reasoning", "multi_turn", "qa", "rag", "summarization", "translation")
CHARACTERS = {
    "plain": Character(0, 0, 0.0),
    "plain-control": Character(0, 0, 0.0),
    "recap": Character(0.62, 14, 0.018, (0, 1, 2, 3, 3)),
    "racer": Character(0.6, 24, 0.018, (4, 6, 6)),
    "token-recycling": Character(0.55, 80, 0.014, (6,)),
    "sam-recycling": Character(0.58, 39, 0.016, (4, 6)),
    "suffix": Character(0.4, 16, 0.018, (4, 5)),
    "prompt-lookup": Character(0.45, 7, 0.02, (4,)),
    "ngram-cache": Character(0.3, 8, 0.02, (4, 5)),
    "recap:one-token": Character(0.45, 16, 0.018, (2,)),
    "recap:no-long-keys": Character(0.5, 15, 0.018, (2, 3)),
    "recap:no-suffix": Character(0.5, 14, 0.018, (0, 1, 2)),
    "recap:no-entropy": Character(0.6, 14, 0.018, (0, 1, 2, 3)),
    "recap:no-persistence": Character(0.58, 14, 0.018, (0, 1, 2, 3)),
    "recap:no-seeding": Character(0.57, 14, 0.018, (0, 1, 2, 3)),
    "token-recycling:24": Character(0.42, 24, 0.018, (6,)),
    "sam": Character(0.44, 12, 0.018, (4,)),
    "recap:32": Character(0.66, 32, 0.016, (0, 1, 2, 3)),
    "recap:64": Character(0.68, 64, 0.015, (0, 1, 2, 3)),
}
OUTSIDE = ("transformers", "transformers-lookup")


def whole(contenders: int = 9, tasks: int = 1, repetitions: int = 2) -> Document:
    """A document as of a whole run: both baselines, then methods, over six categories."""
    rng = random.Random(42)
    names = [*OUTSIDE, *CHARACTERS][:contenders] if contenders > 3 else ["plain", "recap", "racer"]
    records = []
    for task in range(tasks * len(CATEGORIES)):
        category = CATEGORIES[task // tasks]
        ease = rng.uniform(0.7, 1.2)
        for repetition in range(repetitions):
            for name in names:
                place = {"task": f"set/{task}", "category": category, "repetition": repetition}
                records.append(_answer(name, place, ease, rng))
    made = document(*records)
    made["settings"]["workload"] = "spec_bench_60.jsonl"
    return made


def _answer(name: str, place: dict[str, Any], ease: float, rng: random.Random) -> Record:
    noise = rng.uniform(0.97, 1.03)
    memory: dict[str, Any] = {"peak_memory_bytes": int(6e8 * noise), "ttft_s": 0.3 * noise}
    if name in OUTSIDE:
        if name == "transformers-lookup" and rng.random() < 0.1:
            return failed(name, error="IndexError: index out of range in self", **place)
        decode_s = 127 * (0.03 if name == "transformers" else 0.022) * noise
        return outside(
            name,
            commits=[1] * 127 if name == "transformers" else [2] * 63 + [1],
            decode_s=decode_s,
            total_s=decode_s + 0.35,
            **memory,
            **place,
        )
    character = CHARACTERS[name]
    commits: list[int] = []
    while (left := 127 - sum(commits)) > 0:
        commit = 1
        while rng.random() < character.hit * ease and commit < min(left, 9):
            commit += 1
        commits.append(commit)
    decode_s = len(commits) * 0.022 * (1 + character.cost * character.nodes) * noise
    differs = character.nodes and rng.random() < 0.3
    return record(
        name,
        commits=commits,
        nodes=character.nodes,
        depth=8,
        sources=character.sources,
        draft_s=len(commits) * 3e-5 * character.nodes,
        decode_s=decode_s,
        total_s=decode_s + 0.32,
        difference=(rng.randrange(4, 127), rng.random() / 16) if differs else None,
        **memory,
        **place,
    )
