"""Files as users name them, text that they can hold, and files that are replaced whole: one is the
old one or the new one, whatever happens."""

import os
from contextlib import suppress
from pathlib import Path


def user_path(name: str) -> Path:
    """The path that a user means. A shell leaves `~` alone in `--image=~/x.png`, so it is expanded
    here, but not where a file of that very name exists, or nobody has that home."""
    path = Path(name)
    if not name.startswith("~") or os.path.lexists(path):
        return path
    try:
        return path.expanduser()
    except RuntimeError:  # no such user
        return path


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold it: Python has bytes that are no text, of names of files and of
    arguments, as surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the file's place; the file is private to its user (mode 0600).

    A temporary file beside it, see `temporary_of`, is written, made to last and renamed. One
    process at a time may replace a file.

    Raises:
        OSError: it could not be replaced, and is as it was.
    """
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)  # left by a process that was killed
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    _sync_folder(path.parent)


def temporary_of(path: Path) -> Path:
    """What `replace_file` writes before it takes a file's place."""
    return path.with_name(f".{path.name}.tmp")


def _sync_folder(folder: Path) -> None:
    """Make a rename last; some file systems cannot, and then it is still whole."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
