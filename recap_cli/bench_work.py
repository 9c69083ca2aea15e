"""What `recap bench` asks: the tasks that its flags name, and what to call them."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.image_sources import printable_name

if TYPE_CHECKING:
    from engine.bench.workloads import Task

DEMO_TASKS = 18
"""How many scenes are asked about if nothing is named."""
MAX_TOKENS = 128
"""Longest answer, but of sets, whose recipes have their own."""


class Turns(StrEnum):
    """Which turns of a conversation are asked."""

    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Work:
    """Where tasks come from, as the flags have it; scenes of the demo model if nowhere.

    Attributes:
        prompts: a file of them.
        images: a folder of pictures, about each of which `prompt` is asked.
        set, folder: a vision set by its recipe's name, and where its files are; None downloads it.
        limit: most tasks.
        turns: which turns of them.
    """

    prompts: Path | None = None
    images: Path | None = None
    prompt: str | None = None
    set: str | None = None
    folder: Path | None = None
    limit: int | None = None
    turns: Turns = Turns.ALL

    def __post_init__(self) -> None:
        if sum(map(bool, (self.prompts, self.images, self.set))) > 1:
            raise UsageError("--prompts, --images and --set exclude each other")
        if self.folder and not self.set:
            raise UsageError("--set-folder is where the files of a --set are: name that too")
        if (self.images is None) != (self.prompt is None):
            raise UsageError("--images FOLDER and --prompt TEXT go together")

    @property
    def demo(self) -> bool:
        """Whether it is about scenes of the demo model."""
        return not (self.prompts or self.images or self.set)

    @property
    def max_tokens(self) -> int:
        """The longest answer where the user names none."""
        if self.set is None:
            return MAX_TOKENS
        from engine.bench.recipes import MAX_NEW_TOKENS  # noqa: PLC0415

        return MAX_NEW_TOKENS

    def tasks(self, tell: Callable[[str], None]) -> "list[Task]":
        """The tasks; `tell` gets what the user should know about where they come from.

        Raises:
            UsageError: there are none.
        """
        # Names of files that are not Unicode would not go into JSON.
        found = [
            replace(task, id=printable_name(task.id)) for task in self._all(tell)[: self.limit]
        ]
        if self.turns is Turns.FIRST:
            found = [replace(task, turns=task.turns[:1]) for task in found]
        return found

    def described(self, count: int) -> str:
        """The workload in a few words."""
        if self.prompts:
            source = self.prompts.name
        elif self.images:
            source = f'"{self.prompt}" about {self.images.name or self.images}'
        elif self.set:
            source = self.set
        else:
            source = "scenes of the demo model"
        return f"{printable_name(source)}, {count} task{'s' if count > 1 else ''}"

    def _all(self, tell: Callable[[str], None]) -> "list[Task]":
        from engine.bench.workloads import (  # noqa: PLC0415
            demo_workload,
            images_folder,
            read_prompts,
        )

        if self.prompts:
            return read_prompts(self.prompts, tell)
        if self.images:
            return images_folder(self.images, self.prompt or "", tell)
        if self.set:
            from engine.bench.recipes import SAMPLES, load_set  # noqa: PLC0415

            return load_set(self.set, self.folder, tell, samples=self.limit or SAMPLES)
        from engine.demo.batches import HELD_OUT_SEED  # noqa: PLC0415

        return demo_workload(self.limit or DEMO_TASKS, HELD_OUT_SEED)


def fingerprint(tasks: "Iterable[Task]") -> str:
    """Tells tasks of other texts or picture sources apart: 16 hex digits."""
    return hashlib.sha256(repr(list(tasks)).encode()).hexdigest()[:16]
