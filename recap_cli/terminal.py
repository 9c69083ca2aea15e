"""What a terminal can show: control characters taken out, and one live line below the text."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.cells import cell_len, get_character_cell_size
from rich.console import Console
from rich.text import Text

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TAB = 8


def printable(text: str) -> str:
    """`text` without control characters but tab and newline: no model steers a terminal."""
    return _CONTROLS.sub("", text)


def one_line(text: str) -> str:
    """`text` as one printable line."""
    return printable(" ".join(text.split()))


def utf8(text: str) -> str:
    """`text` with the undecodable bytes of file names, which UTF-8 cannot hold, as `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def error_console() -> Console:
    """A console on stderr that takes text as it is: no markup, no emoji codes, no highlighting."""
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def print_error(message: str) -> None:
    """Say on stderr, in one line, what went wrong."""
    console = error_console()
    console.print("recap: ", "[red]error[/]: ", sep="", end="", markup=True)
    console.print(one_line(message), soft_wrap=True)


@contextmanager
def no_echo() -> Iterator[None]:
    """Keep what is typed meanwhile off the terminal; whoever reads it later shows it."""
    try:
        import termios  # noqa: PLC0415
    except ImportError:  # not on Windows
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        with suppress(termios.error):  # closed meanwhile
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class LiveLine:
    """One line on `console`'s terminal, drawn below the text that others write there.

    Each drawing leaves the cursor where it was: IND and CUU make room below it, scrolling if need
    be, and the cursor is saved and restored around the line. A cursor that waits beyond the last
    column would lose its place that way, so then the line stays away until more text has come.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._drawn = False

    def render(self, line: Text) -> str:
        """`line` with its style, cut to one line of the terminal."""
        width = max(1, self._console.width - 1)
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="ellipsis", width=width)
        return captured.get()

    def draw(self, rendered: str) -> None:
        """Show what `render` gave."""
        if self._column < self._console.width:
            self._send(f"\x1bD\x1b[A\x1b7\r\x1b[B\x1b[2K{rendered}\x1b8")
            self._drawn = True

    def erase(self) -> None:
        """Take the line away; needed before other things are written."""
        if self._drawn:
            self._send("\x1b[J")
            self._drawn = False

    def give_way(self, text: str) -> None:
        """Take the line away if `text`, which comes next, will reach it; less flickers so."""
        reach = self._column + cell_len(text)
        if reach >= self._console.width or "\n" in text or "\t" in text:
            self.erase()

    def follow(self, text: str) -> None:
        """Keep count of the column in which `text`, written elsewhere, left the cursor."""
        _, newline, last = text.rpartition("\n")
        column = 0 if newline else self._column
        for character in last:
            cells = (
                _TAB - column % _TAB if character == "\t" else get_character_cell_size(character)
            )
            column = cells if column + cells > self._console.width else column + cells
        self._column = column

    def _send(self, escapes: str) -> None:
        self._console.file.write(escapes)
        self._console.file.flush()
