"""A run's records on disk while it goes on, so that an interrupted run can be resumed.

Beside the file that the results go to, `NAME.partial` holds the header and a record a line, which
`read_document` reads too, and `NAME.memories` what the contenders had learned by some record,
pickled. A pickle is read with nothing but the classes that drafters are made of: it runs no code
of its own. Knows nothing of what is measured.
"""

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import orjson

from engine.bench.document import Header, Record, read_document
from engine.errors import RecapError, UsageError
from engine.files import replace_file

PROTOCOL = 4
"""Of pickle: with later ones arrays need more of NumPy than is read back."""
SAVE_EVERY_S = 60.0
"""How often memories are saved: the work that a process loses if it is killed."""

Memories = tuple[dict[str, Any], dict[str, Any]]
"""What contenders know when a repetition begins, and now."""


class Progress(NamedTuple):
    """How far a run had come: its records up to those that memories are from.

    `again` is how many records there are behind those, which have to be measured again.
    """

    records: list[Record]
    memories: Memories
    again: int


class Journal:
    """Writes down one run; `begin` or `resume` it first."""

    def __init__(self, results: Path) -> None:
        """`results`: the file that the results will go to."""
        self.path = results.with_name(f"{results.name}.partial")
        self._memories = results.with_name(f"{results.name}.memories")
        self._written = 0
        self._saved_at = monotonic()

    @property
    def there(self) -> bool:
        """Whether there is a run to go on with."""
        return self.path.exists()

    def begin(self, header: Header) -> None:
        """Start a run, in place of whatever is there.

        Raises:
            UsageError: the file cannot be written.
        """
        self._memories.unlink(missing_ok=True)
        self._start(header, [])

    def resume(self, header: Header) -> Progress:
        """Go on with the run that is there.

        `header` gets the time at which it began.

        Raises:
            UsageError: it cannot be read, or something but the time was different then.
        """
        before = read_document(self.path)
        header["settings"]["started"] = before["settings"]["started"]
        changed = next(_differences(before, header), None)
        if changed:
            raise UsageError(
                f"{self.path} is of a run with {changed}: repeat the command as it was then, "
                "or delete the file to start anew"
            )
        count, memories = self._load()
        records = before["records"][:count]
        self._start(header, records)
        return Progress(records, memories, again=len(before["records"]) - len(records))

    def append(self, record: Record, memories: Callable[[], Memories]) -> None:
        """Keep a record, and from time to time the memories behind it."""
        with _explained(self.path), self.path.open("ab") as stream:
            stream.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        self._written += 1
        if monotonic() - self._saved_at >= SAVE_EVERY_S:
            self.save(memories())

    def save(self, memories: Memories) -> None:
        """Keep what contenders have learned up to the last record."""
        with _explained(self._memories):
            replace_file(self._memories, pickle.dumps((self._written, memories), PROTOCOL))
        self._saved_at = monotonic()

    def delete(self) -> None:
        """The run is over, and its results are where they belong."""
        for path in (self.path, self._memories):
            path.unlink(missing_ok=True)

    def _start(self, header: Header, records: list[Record]) -> None:
        """Replace what is there by this much of a run."""
        lines = b"".join(
            orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in (header, *records)
        )
        try:
            replace_file(self.path, lines)
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror or error}") from error
        self._written = len(records)

    def _load(self) -> tuple[int, Memories]:
        """How many records the memories are from, and these; nothing where there are none."""
        try:
            data = self._memories.read_bytes()
            count, memories = _DrafterUnpickler(io.BytesIO(data)).load()
        except FileNotFoundError:
            return 0, ({}, {})
        except Exception as error:  # a damaged pickle raises nearly anything
            raise UsageError(
                f"{self._memories} cannot be used ({error}); delete it to start anew"
            ) from error
        return count, memories


class _DrafterUnpickler(pickle.Unpickler):
    """Makes the engine's own classes, containers and arrays; refuses everything else."""

    _ALLOWED = frozenset(
        {
            *(("builtins", kind) for kind in ("dict", "int", "list", "range", "set")),
            *(("collections", kind) for kind in ("Counter", "OrderedDict", "defaultdict", "deque")),
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy.core.multiarray", "_reconstruct"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """The class of this name."""
        found = super().find_class(module, name)
        own = isinstance(found, type) and found.__module__.startswith("engine.")
        if not own and (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return found


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What is another in the run before, in words."""
    for part in ("settings", "versions", "machine"):
        for name, value in now[part].items():
            old = before[part].get(name)
            if old != value:
                told = name.replace("_", " ")
                yield "other prompts" if name == "prompts" else f"{told} {old}, not {value}"
    for part in ("contenders", "tasks"):
        if [*map(_identity, before[part])] != [*map(_identity, now[part])]:
            yield f"other {part}"


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "failed"}


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecapError(f"cannot write {path}: {error.strerror or error}") from error
