"""Ctrl-C, SIGTERM and SIGHUP: finish the running pass and keep what is there, or leave at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Self

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals by which a user, the system, or a terminal that is closed ends a process."""
HANGUP: int = getattr(signal, "SIGHUP", 0)
"""Comes when a terminal is closed, often twice; whatever is written to that terminal then fails.
0 where there is no such signal."""


def terminals() -> list[int]:
    """Those file descriptors of our output that are terminals."""
    return [fd for fd in (1, 2) if os.isatty(fd)]


def send_nowhere(outputs: Iterable[int]) -> None:
    """Let what is written to these file descriptors from here on be lost without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in outputs:
        os.dup2(nowhere, fd)
    os.close(nowhere)


class Interrupted(KeyboardInterrupt):
    """The user, or the system, asked the process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum


class Interrupts:
    """Context manager that owns `ENDING` while a request is answered.

    A signal that is ignored stays so: `nohup` asks for that, and `&` in a shell's script.

    While `graceful` is set, the first signal only sets `cancel` and is remembered in `signum`; at
    any other time, and from the second on, a signal raises `Interrupted`. Of hang-ups the first
    counts, and terminals are written to no more. Main thread only.

    `answer`, called with that first signal, may write to a file descriptor and do little else.
    """

    def __init__(self) -> None:
        self.cancel = threading.Event()
        self.graceful = False
        self.answer: Callable[[], None] | None = None
        self.signum: int | None = None

    def __enter__(self) -> Self:
        self._terminals = terminals()
        owned = [s for s in ENDING if signal.getsignal(s) is not signal.SIG_IGN]
        self._previous = {s: signal.signal(s, self._handle) for s in owned}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, handler)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        if signum == HANGUP:
            signal.signal(signum, signal.SIG_IGN)
            send_nowhere(self._terminals)
        if not self.graceful or self.signum is not None:
            raise Interrupted(signum)
        self.signum = signum
        self.cancel.set()
        if self.answer is not None:
            self.answer()
