"""What is asked in a benchmark: tasks of one or more turns, with sources of pictures.

Knows forms of prompts' files. Opens no picture and knows no model; sets that are distributed with
their pictures are read in `recipes`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """One user turn.

    Attributes:
        text: what is asked.
        images: sources of the pictures that come with it, as `engine.image_sources` takes them.
    """

    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One conversation to run: each turn is asked once the one before is answered.

    Attributes:
        id: unique in its workload.
        category: what it is averaged with.
        turns: at least one.
    """

    id: str
    category: str
    turns: tuple[TaskTurn, ...]
