"""What an entry of a conversation is: a message to the model, or a command to recap.

Knows how entries are spelt, not which commands there are.
"""

import re
from dataclasses import dataclass

QUOTES = '"""'
"""Around a message of several lines, and around one that looks like a command."""

# A path that was dragged into the terminal has a second slash, and is text.
_COMMAND = re.compile(r"/([^/\s]*)(?:\s+|$)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """A command as it was typed: its name without the slash, and what follows."""

    name: str
    argument: str


def is_open(entry: str) -> bool:
    """Whether more lines belong to an entry: it begins with quotes, and others do not follow."""
    entry = entry.strip()
    return entry.startswith(QUOTES) and QUOTES not in entry[len(QUOTES) :]


def instruction(entry: str) -> Instruction | None:
    """The command that an entry is, or None: then it is a message."""
    entry = entry.strip()
    found = _COMMAND.match(entry)
    return Instruction(found[1], entry[found.end() :]) if found else None


def message(entry: str) -> str:
    """The message that an entry holds: without quotes around all of it, or blanks."""
    entry = entry.strip()
    end = len(entry) - len(QUOTES)
    if entry.startswith(QUOTES) and entry.find(QUOTES, len(QUOTES)) == end:
        return entry[len(QUOTES) : end].strip("\n")
    return entry
