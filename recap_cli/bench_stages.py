"""What a long command is doing, on stderr: a moving line on a terminal, a plain one elsewhere.

It moves between requests only, so that nothing runs beside what is measured.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Self, TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from recap_cli.signals import Interrupts
from recap_cli.terminal import error_console, one_line

T = TypeVar("T")
LEAVING = b"recap: finishing the request in hand; Ctrl-C again leaves at once\n"


class Stages:
    """Context manager that shows stages one by one, each of them a known number of requests.

    A signal ends the stage behind the request in hand, and those that follow before their first; a
    second signal raises `Interrupted`.

    Attributes:
        animated: whether stderr can show movement.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._console = error_console()
        self.animated = sys.stderr.isatty() and not self._console.is_dumb_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns,
            console=self._console,
            transient=True,
            auto_refresh=False,
            disable=not self.animated,
        )

    def __enter__(self) -> Self:
        self._interrupts.answer = self._answer
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        """One line that stays."""
        self._console.print(f"recap: {one_line(message)}", soft_wrap=True)

    def note(self, message: str) -> None:
        """One line that the user should read."""
        self.say(f"note: {message}")

    def through(self, what: str, items: Iterable[T], total: int, done: int = 0) -> Iterator[T]:
        """The items of a stage; `done` of its `total` are behind it already."""
        if self._interrupts.cancel.is_set() or done == total:
            return
        if not self.animated:
            self.say(f"{what}: {total - done} requests")
        task = self._progress.add_task(what, total=total, completed=done)
        self._interrupts.graceful = True
        try:
            for item in items:
                yield item
                self._progress.update(task, advance=1, refresh=True)
                if self._interrupts.cancel.is_set():
                    break
        finally:
            self._interrupts.graceful = False
            self._progress.remove_task(task)

    def _answer(self) -> None:
        """Answer a first signal, as the request in hand may take its time."""
        start_of_line = b"\r\x1b[2K" if self.animated else b""
        with suppress(OSError):
            os.write(2, start_of_line + LEAVING)
