"""What a person sees of a request: text on stdout; waiting, live figures and summary on stderr.

Draws; computes no measure (see `engine.stats`) and decides no exit code.
"""

import os
import stat
import sys
import time
from dataclasses import dataclass
from typing import Self, TextIO

from rich.console import RenderableType
from rich.status import Status
from rich.text import Text

from engine.events import Committed, Encoded, Finished
from recap_cli.figures import brief, progress, prompt_counts, summary
from recap_cli.markdown import MarkdownStream
from recap_cli.terminal import LiveLine, error_console, one_line, print_error, printable

_REDRAW_S = 0.1


@dataclass(frozen=True, slots=True)
class View:
    """What is shown.

    Attributes:
        text: write the answer to stdout.
        stream: as it is committed, not whole at the end.
        stats: the summary at the end; None shows it on a terminal only.
        brief: the summary is one line.
        quiet: nothing on stderr, but a summary that `stats` asks for, and what the user asks for.
        markdown: on a terminal, the answer is read as Markdown.
    """

    text: bool = True
    stream: bool = True
    stats: bool | None = None
    brief: bool = False
    quiet: bool = False
    markdown: bool = False


class Display:
    """Context manager that shows requests, one at a time; leaving it leaves a clean terminal.

    Animation needs a terminal on stderr that can move its cursor (`animated`); elsewhere stderr
    gets one plain line a message. While text streams into a pipe there are no live figures either:
    the pipe may end on this very terminal, and only one program at a time can draw there.

    Attributes:
        markdown: whether answers to come are read as Markdown, on a terminal.
        ascii_only: whether stderr takes no other characters.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._console = error_console()
        self.markdown = view.markdown
        self.ascii_only = self._console.options.ascii_only
        terminal = sys.stderr.isatty()
        self.animated = terminal and not self._console.is_dumb_terminal and not view.quiet
        self._summarised = terminal and not view.quiet if view.stats is None else view.stats
        self._screen = sys.stdout.isatty()
        streams = view.text and view.stream
        self._figures = self.animated and not (streams and _is_pipe(sys.stdout))
        self._status: Status | None = None
        self._live = LiveLine(self._console)
        self._rendered, self._rendered_at = "", 0.0
        self._blocks: MarkdownStream | None = None
        self._line_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest()
        self._end_text()

    @property
    def width(self) -> int:
        """Columns of the terminal on stderr."""
        return self._console.width

    def loading(self, model: str, *, local: bool) -> None:
        """Say that a model is being loaded, before that takes its time.

        What is not `local` may have to be downloaded, which draws progress bars of its own.
        """
        if self.animated and local:
            self._wait(f"loading {model} ...")
        else:
            self.remark(f"loading {model} ...")

    def reading(self, event: Encoded) -> None:
        """Say what the model is reading; on a terminal only, it is soon over."""
        if self.animated:
            self._wait(f"reading {prompt_counts(event)} ...")

    def counted(self, event: Encoded) -> None:
        """The end of a dry run: the rendered prompt on stdout, the counts on stderr."""
        self._rest()
        if self._view.text:
            self._write(event.rendered)
            self._end_text()
        text, context = event.prompt_tokens - event.image_tokens, event.context_length
        counts = f"{text} text + {event.image_tokens} image + {event.answer_tokens} answer"
        self.remark(f"{counts} tokens" + ("" if context is None else f" of {context}"))

    def notice(self, message: str) -> None:
        """One line that the user should read."""
        self.remark(f"note: {message}")

    def remark(self, remark: RenderableType) -> None:
        """A line, or more, that `--quiet` leaves out, such as what a command did."""
        if self._view.quiet:
            return
        if isinstance(remark, str):
            self.say(remark)
        else:
            self.show(remark)

    def say(self, message: str) -> None:
        """One line that the user gets in any case."""
        self._rest()
        if self._screen:
            self._end_text()
        self._console.print(f"recap: {one_line(message)}", soft_wrap=True)

    def error(self, message: str) -> None:
        """What went wrong, in one line; other text begins on a new line after it."""
        self._rest()
        self._end_text()
        print_error(message)

    def show(self, figures: RenderableType) -> None:
        """Figures that the user asked for."""
        self._rest()
        self._console.print(figures)

    def committed(self, event: Committed) -> None:
        """Show new text, then the figures below it."""
        self._stop_waiting()
        if self._view.text and self._view.stream:
            self._add(event.text)
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
            self._add(event.text if not self._view.stream else "")
            self._end_text()
            if not event.text:
                self._write("\n")
        if self._summarised and self._view.brief:
            self._console.print(brief(event), no_wrap=True, overflow="ellipsis")
        elif self._summarised:
            self._console.print(summary(event, ascii_only=self.ascii_only))

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

    def _add(self, text: str) -> None:
        """Show more of an answer."""
        if self._screen:
            text = printable(text)
        if self._screen and self.markdown:
            self._blocks = self._blocks or MarkdownStream()
            text = self._blocks.feed(text)
        self._write(text)

    def _end_text(self) -> None:
        """Show what is held back of an answer, and end its line."""
        if self._blocks is not None:
            self._write(self._blocks.finish())
            self._blocks = None
        if self._line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._screen:
            self._live.give_way(text)
            self._live.follow(text)
        sys.stdout.write(text)
        sys.stdout.flush()
        self._line_open = not text.endswith("\n")


def _is_pipe(stream: TextIO) -> bool:
    return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
