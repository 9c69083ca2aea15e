"""The token memory's file on disk: read, merged into, moved aside, cleared.

Whatever happens, the file is the old one or the new one, never half of one: a writer holds a lock,
re-reads, merges, writes a temporary file beside the old one, fsyncs it and renames it over the old
one. Both names beside the file (`.NAME.lock`, `.NAME.tmp`) are private to it, as are the copies
that `quarantine` makes (`NAME.corrupt-TIME`). What the bytes mean is `engine.memory.format`'s.
"""

import glob
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from engine.errors import CorruptMemory, ForeignMemory, MemoryFileError
from engine.files import replace_file, temporary_of
from engine.memory.format import FORMAT_VERSION, METADATA_KEY, MemoryHeader, load, pack
from engine.memory.paths import CORRUPT, SUFFIX, memory_folder, pace_path
from engine.memory.table import Tables

LOCK_TIMEOUT_S = 5.0
BEGINNING = 8192
"""Bytes that hold the header of every token memory."""


def read_memory(path: Path, fingerprint: str | None = None) -> tuple[MemoryHeader, Tables] | None:
    """Header and transitions of a token memory; None where there is no file.

    Args:
        path: the file.
        fingerprint: the tokenizer it must belong to; None takes any.

    Raises:
        CorruptMemory: not a token memory, or cut short.
        ForeignMemory: of another tokenizer, a newer format version, or another kind of file.
        MemoryFileError: it cannot be read.
    """
    with _explained("read", path):
        try:
            _refuse_special(path)
            # safetensors says "not found" of a file that it may not open.
            path.open("rb").close()
        except FileNotFoundError:
            return None
        header, tables = _load(path)
    if fingerprint not in (None, header.tokenizer):
        raise ForeignMemory(
            f"token memory {path} belongs to another tokenizer ({header.tokenizer}, "
            f"not {fingerprint}); name another file"
        )
    return header, tables


def update_memory(
    path: Path, fingerprint: str, model: str, new: Tables, requests: int
) -> MemoryHeader:
    """Merge what one run learned into the file, which is begun where there is none.

    Args:
        path: the file; missing folders are made, mode 0700.
        fingerprint: the tokenizer of the ids in `new`.
        model: id of the model that predicted `new`.
        new: the rows written in this run, uses counted in this run. They replace the file's rows
            of the same keys, uses are added, and the file takes their k. Of more than
            `PHRASES_MOST` phrases, those go that were written longest ago.
        requests: how many requests this run answered.

    Returns:
        The header as written.

    Raises:
        CorruptMemory, ForeignMemory: the file there does not fit; it is as before.
        MemoryFileError: it cannot be locked, read or written; it is as before.
    """
    with locked(path, "write"):
        stored = read_memory(path, fingerprint)
        header, tables = _merge(stored, fingerprint, model, new, requests)
        replace_file(path.resolve(), pack(header, tables))  # a link stays one
    return header


def quarantine(path: Path) -> Path | None:
    """Move a corrupt file aside, to `NAME.corrupt-TIME` in its folder, and say where to.

    None where the file is not corrupt any more: another process may have been first.

    Raises:
        MemoryFileError: it cannot be locked, read or moved.
    """
    with locked(path, "move aside"):
        try:
            read_memory(path)
        except CorruptMemory:
            moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            return path.replace(path.with_name(f"{path.name}{CORRUPT}{moment}"))
        except ForeignMemory:
            pass
        return None


def clear_memory(path: Path) -> bool:
    """Delete the file, damaged or not, and what is beside it; whether there was anything.

    Raises:
        ForeignMemory: it is something else, and stays.
        MemoryFileError: it cannot be locked or deleted.
    """
    with _explained("clear", path):
        if not _everything_of(path):
            return False
        if path.exists():
            _refuse_special(path)
            if not _may_be_ours(path):
                raise _something_else(path)
    with locked(path, "clear"):
        for file in _everything_of(path):
            file.unlink(missing_ok=True)
    return True


def _load(path: Path) -> tuple[MemoryHeader, Tables]:
    """See `engine.memory.format.load`; what never was a token memory is foreign, not corrupt."""
    try:
        return load(path)
    except CorruptMemory as error:
        if _may_be_ours(path):
            raise
        raise _something_else(path) from error


def _may_be_ours(path: Path) -> bool:
    """Whether a file was a token memory, however damaged: by its place, or what it begins with.

    A user may have named any file.
    """
    if path.name.endswith(SUFFIX) and path.parent.resolve() == memory_folder().resolve():
        return True
    with path.open("rb") as file:
        start = file.read(BEGINNING)
    return not start or METADATA_KEY.encode() in start


def _something_else(path: Path) -> ForeignMemory:
    return ForeignMemory(f"{path} is no token memory; name another file")


def _merge(
    stored: tuple[MemoryHeader, Tables] | None,
    fingerprint: str,
    model: str,
    new: Tables,
    requests: int,
) -> tuple[MemoryHeader, Tables]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    model = model.encode(errors="replace").decode()  # a folder's name need not be Unicode
    header, tables = stored or (None, Tables.empty(new.tokens.k))
    merged = tables.merged_with(new)
    models = header.models if header else ()
    return (
        MemoryHeader(
            format_version=FORMAT_VERSION,
            tokenizer=fingerprint,
            models=models if model in models else (*models, model),
            k=merged.tokens.k,
            keys=len(merged.tokens.keys),
            phrases=len(merged.phrases.keys),
            first_used=header.first_used if header else now,
            last_used=now,
            requests=requests + (header.requests if header else 0),
        ),
        merged,
    )


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the file's lock; errors of the file system become `MemoryFileError`."""
    with _explained(doing, path):
        with suppress(FileNotFoundError):
            _refuse_special(path)
        _make_private(path.parent)
        lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S, mode=0o600)
        try:
            lock.acquire()
        except Timeout as error:
            raise MemoryFileError(
                f"cannot {doing} the token memory {path}: another process has held it for "
                f"{LOCK_TIMEOUT_S:g} s; try again, or name another file"
            ) from error
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _explained(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MemoryFileError(
            f"cannot {doing} the token memory {path}: {error.strerror or error}; "
            "check its folder, or name another file"
        ) from error


def _refuse_special(path: Path) -> None:
    """Keep off folders and devices, which a rename would destroy."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise MemoryFileError(f"{path} is not a regular file; name another file as token memory")


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _everything_of(path: Path) -> list[Path]:
    corrupt = path.parent.glob(f"{glob.escape(path.name)}{CORRUPT}*")
    pace = pace_path(path)
    beside = (temporary_of(path), pace, temporary_of(pace))
    return [file for file in (path, *beside, *corrupt) if file.exists()]
