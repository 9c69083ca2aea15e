"""Rows of a set as it is distributed: Parquet or JSON files in a folder, or the Hub.

Reads only the rows that are asked for where the format allows it. Knows no prompts. Parquet needs
pyarrow, and the Hub the package `datasets`, which brings it; both are the extra `bench`.
"""

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from engine.errors import UsageError
from engine.image_sources import is_url

SUFFIXES = (".parquet", ".jsonl", ".json")
"""Of files of rows; of several kinds the first counts."""

Row = Mapping[str, Any]


class Rows(Protocol):
    """A table that may be larger than the memory.

    Attributes:
        folder: from where relative paths of pictures count; None where there are none.
    """

    folder: Path | None

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def take(self, numbers: Sequence[int]) -> list[Row]:
        """These rows, in this order."""
        ...

    def where(self, field: str, values: Collection[Any]) -> list[Row]:
        """Rows that have one of these values in a field."""
        ...


def local_rows(folder: Path, config: str | None, split: str, hub: str) -> Rows:
    """Rows of files below a folder that is laid out as on the Hub.

    Files of a config are in a folder of its name, if there is one; those of a split begin with its
    name or are in a folder of it: `ScienceQA-IMG/test-00000-of-00001.parquet`.

    Raises:
        UsageError: there are none, they cannot be read, or pyarrow is missing.
    """
    files = _files(folder, config, split)
    if not files:
        what = f"{config}/{split}" if config else split
        raise UsageError(
            f"{folder}: no {what}*.parquet, .jsonl or .json in it; "
            f"hf download {hub} --repo-type dataset --local-dir {folder} brings them"
        )
    if files[0].suffix == ".parquet":
        return _ParquetRows(files, folder)
    return _JsonRows(files, folder)


def hub_rows(hub: str, config: str | None, split: str) -> Rows:
    """Rows of a set on the Hub, by the package `datasets`, which keeps them in its cache.

    Raises:
        UsageError: the package is missing, or cannot have the set.
    """
    datasets = _module("datasets", "a set without a folder")
    try:
        return _HubRows(datasets.load_dataset(hub, config, split=split))
    except Exception as error:  # whatever the network, the Hub or a script of a set may raise
        line = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{hub}: cannot be had from the Hub ({type(error).__name__}: {line}); "
            "download it elsewhere, and name its folder"
        ) from error


def image_sources(value: Any, folder: Path | None) -> tuple[str, ...]:
    """What a picture's field holds, as sources for `engine.image_sources`.

    Args:
        value: bytes with or without a path, as the Hub stores pictures; a path or URL; a list of
            such; or None.
        folder: from where relative paths count.

    Raises:
        UsageError: it is none of these.
    """
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(source for item in value for source in image_sources(item, folder))
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return (f"data:image;base64,{base64.b64encode(value).decode()}",)
    if not isinstance(value, str):
        raise UsageError(f"not a picture, a path or a URL: {value!r:.60}")
    if folder is None or is_url(value):
        return (value,)
    places = (folder / value, folder / "images" / value)
    return (str(next((place for place in places if place.is_file()), places[0])),)


class _ParquetRows:
    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        self.folder: Path | None = folder
        arrow = _module("pyarrow.dataset", f"{files[0]}: a Parquet file")
        try:
            self._table = arrow.dataset([str(file) for file in files], format="parquet")
            self._count: int = self._table.count_rows()
        except (OSError, ValueError) as error:
            line = str(error).partition("\n")[0]
            raise UsageError(f"{files[0]}: cannot be read as Parquet ({line})") from error

    def __len__(self) -> int:
        return self._count

    def take(self, numbers: Sequence[int]) -> list[Row]:
        rows: list[Row] = self._table.take(list(numbers)).to_pylist()
        return rows

    def where(self, field: str, values: Collection[Any]) -> list[Row]:
        column = _module("pyarrow.dataset", "Parquet").field(field)
        rows: list[Row] = self._table.to_table(filter=column.isin(list(values))).to_pylist()
        return rows


class _JsonRows:
    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        self.folder: Path | None = folder
        self._rows = [row for file in files for row in _json_rows(file)]

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, numbers: Sequence[int]) -> list[Row]:
        return [self._rows[number] for number in numbers]

    def where(self, field: str, values: Collection[Any]) -> list[Row]:
        return [row for row in self._rows if row.get(field) in values]


class _HubRows:
    def __init__(self, dataset: Any) -> None:
        self.folder: Path | None = None
        self._dataset = dataset.with_format("arrow")  # pictures stay bytes

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, numbers: Sequence[int]) -> list[Row]:
        rows: list[Row] = self._dataset[list(numbers)].to_pylist()
        return rows

    def where(self, field: str, values: Collection[Any]) -> list[Row]:
        keys = self._dataset.select_columns([field])[:].column(field).to_pylist()
        return self.take([number for number, key in enumerate(keys) if key in values])


def _files(folder: Path, config: str | None, split: str) -> list[Path]:
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
    if config is not None and any(config in path.parts[:-1] for path in found):
        found = [path for path in found if config in path.parts[:-1]]
    begins = re.compile(rf"{re.escape(split)}(?![A-Za-z0-9])")
    mine = [path for path in found if begins.match(path.name) or split in path.parts[:-1]]
    kinds = ([folder / path for path in mine if path.suffix == suffix] for suffix in SUFFIXES)
    return next(filter(None, kinds), [])


def _json_rows(file: Path) -> Iterator[Row]:
    """Objects of a JSON Lines file, or of a JSON file's list."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix == ".json":
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{file}: objects are wanted, in a list or one a line")
    yield from rows


def _module(name: str, what: str) -> Any:
    """An optional package's module."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{what} needs {package}: pip install 'recap-vlm[bench]'") from error
