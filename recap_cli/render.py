"""What a person sees of one request: text on stdout; waiting, live figures and summary on stderr.

Draws; computes no measure (see `engine.stats`) and decides no exit code.
"""

import os
import stat
import sys
import time
from dataclasses import dataclass
from typing import Self, TextIO

from rich.status import Status
from rich.text import Text

from engine.events import Committed, Encoded, Finished
from recap_cli.figures import progress, prompt_counts, summary
from recap_cli.terminal import LiveLine, error_console, one_line, printable

_REDRAW_S = 0.1


@dataclass(frozen=True, slots=True)
class View:
    """What is shown.

    Attributes:
        text: write the answer to stdout.
        stream: as it is committed, not whole at the end.
        stats: the summary at the end; None shows it on a terminal only.
        quiet: nothing on stderr, but a summary that `stats` asks for.
    """

    text: bool = True
    stream: bool = True
    stats: bool | None = None
    quiet: bool = False


class Display:
    """Context manager that shows one request; leaving it always leaves a clean terminal.

    Animation needs a terminal on stderr that can move its cursor (`animated`); elsewhere stderr
    gets one plain line a message. While text streams into a pipe there are no live figures either:
    the pipe may end on this very terminal, and only one program at a time can draw there.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._console = error_console()
        terminal = sys.stderr.isatty()
        self.animated = terminal and not self._console.is_dumb_terminal and not view.quiet
        self._summarised = terminal and not view.quiet if view.stats is None else view.stats
        self._screen = sys.stdout.isatty()
        streams = view.text and view.stream
        self._figures = self.animated and not (streams and _is_pipe(sys.stdout))
        self._status: Status | None = None
        self._live = LiveLine(self._console)
        self._rendered, self._rendered_at = "", 0.0
        self._line_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest()
        if self._line_open:
            self._write("\n")

    def loading(self, model: str, *, local: bool) -> None:
        """Say that a model is being loaded, before that takes its time.

        What is not `local` may have to be downloaded, which draws progress bars of its own.
        """
        if self.animated and local:
            self._wait(f"loading {model} ...")
        elif not self._view.quiet:
            self._say(f"loading {model} ...")

    def reading(self, event: Encoded) -> None:
        """Say what the model is reading; on a terminal only, it is soon over."""
        if self.animated:
            self._wait(f"reading {prompt_counts(event)} ...")

    def counted(self, event: Encoded) -> None:
        """The end of a dry run: the rendered prompt on stdout, the counts on stderr."""
        self._rest()
        if self._view.text:
            self._write(event.rendered)
            if self._line_open:
                self._write("\n")
        if not self._view.quiet:
            text, context = event.prompt_tokens - event.image_tokens, event.context_length
            counts = f"{text} text + {event.image_tokens} image + {event.answer_tokens} answer"
            self._say(f"{counts} tokens" + ("" if context is None else f" of {context}"))

    def notice(self, message: str) -> None:
        """One line that the user should read."""
        if not self._view.quiet:
            self._rest()
            self._say(f"note: {message}")

    def committed(self, event: Committed) -> None:
        """Show new text, then the figures below it."""
        self._stop_waiting()
        if self._view.text and self._view.stream:
            self._write(event.text)
        if self._figures:
            now = time.monotonic()
            if now - self._rendered_at >= _REDRAW_S:
                self._rendered = self._live.render(progress(event.stats))
                self._rendered_at = now
            self._live.draw(self._rendered)

    def finished(self, event: Finished) -> None:
        """Show the whole answer where it was not streamed, and the summary."""
        self._rest()
        if self._view.text:
            self._write(event.text if not self._view.stream else "")
            if self._line_open or not event.text:
                self._write("\n")
        if self._summarised:
            self._console.print(summary(event, ascii_only=self._console.options.ascii_only))

    def _wait(self, message: str) -> None:
        message = one_line(message)
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(Text(message, "dim"))

    def _rest(self) -> None:
        """Take away whatever moves, so that anything can be written."""
        self._stop_waiting()
        self._live.erase()

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, message: str) -> None:
        if self._line_open and self._screen:
            self._write("\n")
        self._console.print(f"recap: {one_line(message)}", soft_wrap=True)

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._screen:
            text = printable(text)
            self._live.give_way(text)
            self._live.follow(text)
        sys.stdout.write(text)
        sys.stdout.flush()
        self._line_open = not text.endswith("\n")


def _is_pipe(stream: TextIO) -> bool:
    return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
