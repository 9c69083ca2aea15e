"""What Tab offers at the prompt of a conversation: commands, what they take, and files."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from engine.files import user_path
from recap_cli.chat_commands import COMMANDS

# Blanks, or a word as a shell reads it, whose last quote may be open.
_WORDS = re.compile(r"""\s+|(?:[^\s"'\\]|\\.?|"(?:[^"\\]|\\.)*"?|'[^']*'?)+""", re.DOTALL)
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")


class ChatCompleter(Completer):
    """Completes commands; there is nothing to complete in a message."""

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        """What may stand at the cursor."""
        typed = document.text_before_cursor
        if not typed.startswith("/"):
            return
        name, blank, argument = typed[1:].partition(" ")
        if not blank:
            yield from _names(name)
        elif (command := COMMANDS.get(name)) and command.files:
            yield from _files(argument)
        elif command:
            yield from _matching(command.completes, argument)


def _names(start: str) -> Iterator[Completion]:
    for command in COMMANDS.values():
        if command.name.startswith(start):
            ending = " " if command.takes else ""
            yield Completion(f"{command.name}{ending}", -len(start), display=f"/{command.name}")


def _matching(words: tuple[str, ...], start: str) -> Iterator[Completion]:
    for word in words:
        if word.startswith(start):
            yield Completion(f"{word} ", -len(start), display=word)


def _files(argument: str) -> Iterator[Completion]:
    """Files and folders whose path begins as the last word does; escaped, not quoted."""
    words: list[str] = _WORDS.findall(argument)
    typed = words[-1] if words and not words[-1].isspace() else ""
    folder, _, start = _meant(typed).rpartition("/")
    folder += "/" if "/" in _meant(typed) else ""
    for name in _entries(folder, start):
        path = _SPECIAL.sub(r"\\\g<0>", folder + name)
        yield Completion(path + ("" if name.endswith("/") else " "), -len(typed), display=name)


def _entries(folder: str, start: str) -> list[str]:
    """Names in a folder, those of folders with a slash; hidden ones only if a dot was typed.

    A folder that cannot be read has none, and neither has the home of nobody.
    """
    with suppress(OSError), os.scandir(user_path(folder or ".")) as entries:
        return sorted(
            entry.name + ("/" if entry.is_dir() else "")
            for entry in entries
            if entry.name.startswith(start) and (start or not entry.name.startswith("."))
        )
    return []


def _meant(typed: str) -> str:
    """A word without its quotes and backslashes, though the last quote may be open."""
    for closing in ("", '"', "'"):
        with suppress(ValueError):
            return "".join(shlex.split(typed + closing))
    return typed
