"""Where the entries of a conversation come from: a person at a prompt, or the lines of a pipe."""

import asyncio
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal

from recap_cli.chat_completion import ChatCompleter
from recap_cli.chat_entries import is_open
from recap_cli.signals import ENDING, HANGUP, Interrupted, send_nowhere, terminals

Tell = Callable[[str], None]


def is_interactive() -> bool:
    """Whether somebody types, and sees what they type."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    return sys.stderr.isatty() or sys.stdout.isatty()


def piped_entries() -> Iterator[str]:
    """The entries in standard input, each as soon as its line is there; empty lines are none."""
    if sys.stdin is None:
        return
    # What is no text stays recognisable, and is refused where it is sent.
    lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig", errors="surrogateescape")
    entry = ""
    for line in lines:
        entry += line
        if not is_open(entry):
            if entry.strip():
                yield entry
            entry = ""
    if entry:
        yield entry


def typed_entries(history: Path | None, waiting: Callable[[], int], tell: Tell) -> Iterator[str]:
    """Entries as somebody types them, until Ctrl-D.

    Args:
        history: file of what was typed before; None remembers nothing beyond this run.
        waiting: how many pictures are queued; the prompt shows it.
        tell: gets a line for the user.

    Raises:
        Interrupted: Ctrl-C was pressed twice, with nothing typed.
    """
    prompt: PromptSession[str] = PromptSession(
        lambda: _before(waiting()),
        history=open_history(history, tell) if history else InMemoryHistory(),
        completer=ChatCompleter(),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        reserve_space_for_menu=0,
        multiline=Condition(lambda: is_open(get_app().current_buffer.text)),
        enable_suspend=True,
        output=_screen(),
    )
    warned = False
    while True:
        try:
            entry = _prompt_for_entry(prompt)
        except EOFError:
            return
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Interrupted):
                raise
            if warned:
                raise Interrupted(signal.SIGINT) from interrupt
            warned = not prompt.default_buffer.text
            if warned:
                tell("Ctrl-C again quits, as Ctrl-D does")
            continue
        warned = False
        if entry.strip():
            yield entry


def history_path() -> Path:
    """The file of what was typed in conversations."""
    return user_state_path("recap", appauthor=False) / "chat_history"


def _prompt_for_entry(prompt: PromptSession[str]) -> str:
    """One entry. A signal ends the prompt from its own loop, so that it leaves the terminal clean.

    Until the prompt reads keys, Ctrl-C is a signal, and means the answer that has just ended: then
    it is ignored.

    Raises:
        EOFError, KeyboardInterrupt: as pressed.
        Interrupted: another signal came.
    """
    before = {each: signal.getsignal(each) for each in ENDING}
    others = [each for each in ENDING if each != signal.SIGINT and before[each] != signal.SIG_IGN]

    shown = terminals()

    def hang_up() -> None:
        before[HANGUP] = signal.SIG_IGN
        send_nowhere(shown)

    def leave(signum: int) -> None:
        if signum == HANGUP:
            hang_up()
        if not prompt.app.is_done:
            prompt.app.exit(exception=Interrupted(signum))

    def listen() -> None:
        with suppress(NotImplementedError):  # on Windows
            for signum in others:
                asyncio.get_running_loop().add_signal_handler(signum, leave, signum)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return prompt.prompt(pre_run=listen)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        hang_up()  # the terminal is gone, and the signal not yet here
        raise Interrupted(HANGUP) from error
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _screen() -> Output | None:
    """The terminal that shows what is typed; None is a plain one, of which nothing is expected."""
    if is_dumb_terminal():
        return None
    return create_output(sys.stderr if sys.stderr.isatty() else sys.stdout)


def _before(waiting: int) -> str:
    """What stands before an entry."""
    if not waiting:
        return "> "
    return f"[{waiting} picture{'s' if waiting > 1 else ''}] > "


class StoredHistory(FileHistory):
    """What was typed, kept in a file; a disk that is full costs nothing but that."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def open_history(path: Path, tell: Tell) -> History:
    """The history in a file that only its user may read."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        reason = error.strerror or error
        tell(f"what you type is not kept: {path}: {reason}; --no-history does not ask for it")
        return InMemoryHistory()
    return StoredHistory(str(path))
