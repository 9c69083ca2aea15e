"""Rows of a prompts' file: where each of several forms says what is asked, and about what.

Knows the forms of Spec-Bench, of MMSpec and of sets that lmms-eval asks; opens no picture.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import UsageError
from engine.image_sources import is_url, printable_name

MARKER = "<image>"
"""Where a row's text has this, a picture of the row belongs to that turn."""

IDS = ("id", "question_id", "doc_id", "data_id")
CATEGORIES = ("topic", "category")  # MMSpec's `category` is a finer one, as in the sets it is from
QUESTIONS = ("turns", "question", "prompt")
IMAGES = ("images", "image")
"""Keys of a row, of which the first that has a value counts."""


def read_rows(path: Path) -> Iterator["Row"]:
    """The rows of a JSON Lines file; empty lines are none.

    Raises:
        UsageError: the file cannot be read, or a line is no JSON object.
    """
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield Row(path, number, line)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"cannot read prompts from {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error


class Row:
    """One row; every method raises UsageError with file, line and key for what it cannot take."""

    def __init__(self, path: Path, number: int, line: str) -> None:
        self._path, self._number = path, number
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            self._refuse(f"not JSON ({error.msg} at column {error.colno}); a row is one line")
        if not isinstance(fields, dict):
            self._refuse("a row is an object with turns or question")
        self._fields: dict[str, Any] = fields
        self._used: set[str] = set()

    def id(self) -> str:
        """What it is called; its line's number where it has no name."""
        return self._name(IDS, str(self._number))

    def category(self) -> str:
        """With what it is averaged; the file's name where it does not say."""
        return self._name(CATEGORIES, self._path.stem)

    def turns(self) -> list[tuple[str, tuple[str, ...]]]:
        """What each turn asks, and the sources of its pictures."""
        texts, sources = self._texts(), self._sources()
        wanted = [text.count(MARKER) for text in texts]
        if not any(wanted):
            wanted[0] = len(sources)
        if sum(wanted) != len(sources):
            places, given = sum(wanted), len(sources)
            self._refuse(f"{places} of {MARKER} in its texts, but {given} pictures")
        rest = iter(sources)
        return [
            (_without_marker(text), tuple(islice(rest, number)))
            for text, number in zip(texts, wanted, strict=True)
        ]

    def unused(self) -> set[str]:
        """Keys with a value that no method took."""
        return {key for key, value in self._fields.items() if value is not None} - self._used

    def _texts(self) -> list[str]:
        key = self._key(QUESTIONS)
        if key is None:
            found = ", ".join(self._fields) or "nothing"
            self._refuse(f"no turns, question or prompt in it, but {found}")
        texts = self._list(key)
        if not texts:
            self._refuse(f"{key}: no turn in it")
        for i, text in enumerate(texts):
            name = f"{key}[{i}]" if len(texts) > 1 else key
            if not isinstance(text, str):
                self._refuse(f"{name}: a text is wanted, not {_shown(text)}")
            if not _without_marker(text).strip():
                self._refuse(f"{name}: nothing is asked")
        return texts

    def _sources(self) -> list[str]:
        key = self._key(IMAGES)
        return [self._source(key, source) for source in self._list(key)] if key else []

    def _source(self, key: str, source: Any) -> str:
        """A URL as it stands; a path from where it counts."""
        if not isinstance(source, str) or not source:
            self._refuse(f"{key}: a path or URL is wanted, not {_shown(source)}")
        if is_url(source):
            return source
        folder = self._path.parent
        paths = [folder / source, folder / "images" / source]
        found = next((str(path) for path in paths if path.is_file()), None)
        return found or self._refuse(f"{key}: no file {printable_name(str(paths[0]))}")

    def _name(self, keys: Sequence[str], default: str) -> str:
        key = self._key(keys)
        value = self._fields[key] if key else default
        if not isinstance(value, str | int):
            self._refuse(f"{key}: a text or a number is wanted, not {_shown(value)}")
        return str(value)

    def _key(self, keys: Sequence[str]) -> str | None:
        """The first of `keys` that has a value in this row."""
        found = next((key for key in keys if self._fields.get(key) is not None), None)
        self._used.update([found] if found else [])
        return found

    def _list(self, key: str) -> list[Any]:
        value = self._fields[key]
        return value if isinstance(value, list) else [value]

    def _refuse(self, reason: str) -> NoReturn:
        raise UsageError(f"{self._path} line {self._number}: {reason}")


def _without_marker(text: str) -> str:
    return text.replace(MARKER, "").strip() if MARKER in text else text


def _shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    return json.dumps(value)[:60]
