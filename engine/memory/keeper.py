"""Keeps a session's token memory in its file; whatever goes wrong is a notice, never an error."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.errors import CorruptMemory, MemoryFileError
from engine.memory.file import quarantine, read_memory, update_memory
from engine.memory.pace import read_pace, write_pace
from engine.memory.table import Tables
from engine.memory.transitions import TokenMemory


class Savable(Protocol):
    """What a memory is to whoever saves it."""

    @property
    def changed(self) -> bool:
        """Whether rows were written that are not saved."""
        ...

    def __len__(self) -> int:
        """How many tokens it knows."""
        ...

    def news(self) -> Tables | None:
        """All that was written since the last save; None when there is nothing."""
        ...

    def mark_saved(self) -> None:
        """Nothing that is in it now needs to be written again."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryKeeper:
    """Reads and writes the token memory of one model's tokenizer.

    Attributes:
        path: the file.
        fingerprint: of the tokenizer's vocabulary.
        model: id of the model, listed in the file.
        vocab_size: ids from here on would not be the model's.
    """

    path: Path
    fingerprint: str
    model: str
    vocab_size: int

    def load(self) -> tuple[TokenMemory, list[str]]:
        """The memory in the file, or an empty one and one line that says why."""
        try:
            stored = read_memory(self.path, self.fingerprint)
        except CorruptMemory as error:
            return TokenMemory(), [f"{error}; {self._set_aside()}; starting with an empty memory"]
        except MemoryFileError as error:
            return TokenMemory(), [f"{error}; starting with an empty memory"]
        if stored is None:
            return TokenMemory(), []
        return TokenMemory(*stored[1].below(self.vocab_size)), []

    def save(self, memory: Savable, requests: int) -> list[str]:
        """Merge what was learned since the last save; on failure one line that says why."""
        new = memory.news()
        if new is None:
            return []
        try:
            update_memory(self.path, self.fingerprint, self.model, new, requests)
        except MemoryFileError as error:
            return [f"{error}; what was learned is not kept"]
        memory.mark_saved()
        return []

    def load_pace(self, key: str) -> dict[str, Any] | None:
        """What is remembered of the speed of this machine and model; None where nothing is."""
        return read_pace(self.path, key)

    def save_pace(self, key: str, pace: dict[str, Any]) -> None:
        """Remember it; without it the next session measures again, so a failure is not said."""
        with suppress(MemoryFileError):
            write_pace(self.path, key, pace)

    def _set_aside(self) -> str:
        try:
            aside = quarantine(self.path)
        except MemoryFileError as error:
            return str(error)
        return f"moved it to {aside}" if aside else "another process moved it aside"
