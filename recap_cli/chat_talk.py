"""A conversation as a person leads it: what is queued, asked, taken back, saved and shown.

What may go wrong is raised; `recap_cli.chat_loop` shows it and goes on.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ContextError, ImageError, RequestError, UsageError
from engine.files import is_utf8
from engine.image_sources import printable_name
from engine.images import ImageOptions, Picture
from recap_cli import sessions
from recap_cli.answer import follow, recorded
from recap_cli.inputs import STDIN, checked, open_pictures, warn_of_other_pictures
from recap_cli.options import DEMO_MODEL
from recap_cli.records import Record
from recap_cli.render import Display
from recap_cli.signals import Interrupted, Interrupts
from recap_cli.terminal import no_echo

if TYPE_CHECKING:
    from engine.conversation import Conversation
    from engine.prompts import Message
    from engine.session import MemoryUse, Session
    from engine.transcript import Exchange, Transcript

TURNS_BETWEEN_SAVES = 4
"""Answers after which the token memory is saved, besides at the end."""
_ROOM = (
    "/clear or /undo makes room; --drop-oldest, or /set drop-oldest on, lets go of the oldest turns"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What does not change while a conversation goes on.

    Attributes:
        model, method: as the flags have them.
        named: whether the user chose the model; else a conversation that is resumed does.
        image_options: how pictures are opened.
        interactive: whether somebody types; else entries come from a pipe, where nobody can try
            again: a message that fails takes its pictures with it.
        jsonl: whether a turn is written as a record.
        save: the transcript that is written after every turn.
    """

    model: str
    named: bool
    method: str
    image_options: ImageOptions
    interactive: bool = False
    jsonl: bool = False
    save: Path | None = None

    def open_pictures(self, sources: Sequence[str], tell: Callable[[str], None]) -> list[Picture]:
        """Open pictures; `tell` gets what the user should know about them.

        Raises:
            UsageError: one is asked for on standard input.
            ImageError: one cannot be opened, or not be named in `save`.
        """
        if STDIN in sources:
            raise UsageError("standard input holds the conversation, so it cannot hold a picture")
        pictures = open_pictures(sources, self.image_options, tell)
        for picture in pictures:
            if self.save and not is_utf8(picture.origin.name):
                raise ImageError(
                    f"{picture.source}: its name is not UTF-8, so that {self.save} could not hold "
                    "it; rename the picture"
                )
        if self.model == DEMO_MODEL:
            warn_of_other_pictures(pictures, tell)
        return pictures

    def read(self, path: Path) -> "Transcript":
        """A saved conversation.

        Raises:
            TranscriptError: it cannot be read, or a picture of it is not there any more.
        """
        return sessions.load_transcript(path, self.image_options)


@dataclass(frozen=True, slots=True)
class Queued:
    """A picture that waits for the next message, and the tokens it will take."""

    picture: Picture
    tokens: int


class Talk:
    """One conversation of one session.

    Attributes:
        conversation: what was said; settings of answers to come.
        display: where it is shown.
        queued: pictures of the next message.
        over: whether the user wants to leave.
    """

    def __init__(
        self, session: "Session", conversation: "Conversation", display: Display, settings: Settings
    ) -> None:
        self.conversation = conversation
        self.display = display
        self.queued: list[Queued] = []
        self.over = False
        self._session = session
        self._settings = settings
        self._interrupts = Interrupts()
        self._incomplete = False
        self._answers = 0
        self._files: set[Path] = set()

    @contextmanager
    def entry(self) -> Iterator[None]:
        """Around what one entry asks for.

        At a prompt the first Ctrl-C ends it, and an answer is kept as far as it came; a second one,
        and any other signal, ends everything. Keys that are pressed meanwhile are not shown.

        Raises:
            RequestError: it was stopped before there was anything to keep.
            Interrupted: everything is to end.
        """
        prompt = self._settings.interactive
        with Interrupts() as interrupts, no_echo() if prompt else nullcontext():
            self._interrupts = interrupts
            try:
                yield
            except Interrupted as interrupted:
                first = interrupts.signum is None
                if not (prompt and first and interrupted.signum == signal.SIGINT):
                    raise
                raise RequestError("stopped") from interrupted
        if interrupts.signum is not None and not (prompt and interrupts.signum == signal.SIGINT):
            raise Interrupted(interrupts.signum)

    def open(self, sources: Sequence[str]) -> list[Queued]:
        """Open pictures and queue them for the next message; all of them, or none.

        Raises:
            RequestError: one cannot be opened, or the model cannot take it.
        """
        self._incomplete = not self._settings.interactive
        added = self.queue(self._settings.open_pictures(sources, self.display.notice))
        self._incomplete = False
        return added

    def queue(self, pictures: Sequence[Picture]) -> list[Queued]:
        """Queue pictures that are open for the next message; all of them, or none.

        Raises:
            RequestError: the model cannot take one of them.
        """
        count = self.conversation.picture_tokens
        added = [Queued(picture, count(picture.image)) for picture in pictures]
        self.queued += added
        return added

    def ask(self, text: str) -> None:
        """Send a message with the pictures that are queued, and show the answer.

        Raises:
            RequestError: it cannot be answered; the conversation is as it was.
        """
        waiting, self.queued = self.queued, []
        said = len(self.conversation.exchanges)
        incomplete, self._incomplete = self._incomplete, False
        message = sessions.make_message(text, [queued.picture for queued in waiting])
        try:
            with self._recorded(message) as record:
                checked(text, "the message", "type something")
                if incomplete:
                    raise RequestError("not sent: a picture that it is about could not be queued")
                self._answer(message, record)
        finally:
            if self._settings.interactive and len(self.conversation.exchanges) == said:
                self.queued = waiting

    def regenerate(self) -> None:
        """Answer the last question anew; the old answer stays if there is no new one."""
        before = self.conversation.transcript()
        last = self.conversation.undo()
        if last is None:
            raise UsageError("nothing was answered yet")
        try:
            with self._recorded(last.question) as record:
                self._answer(last.question, record)
        finally:
            if len(self.conversation.exchanges) < len(before.exchanges):
                self.conversation.restore(before)

    def memory_use(self) -> "MemoryUse":
        """How much was learned."""
        return self._session.memory_use()

    def undo(self) -> "Exchange | None":
        """Take the last exchange back."""
        last = self.conversation.undo()
        self._incomplete = False
        self._keep()
        return last

    def save(self, path: Path | None = None) -> Path:
        """Write the transcript, to the file of `--save` where none is named; returns the file.

        Raises:
            UsageError: it holds something that is not this conversation's, or there is none.
            TranscriptError: it cannot be written.
        """
        path = path or self._settings.save
        if path is None:
            raise UsageError("no file: /save FILE writes the conversation to it")
        if path.resolve() not in self._files:
            refuse_to_replace(path)
        sessions.save_transcript(path, self.conversation.transcript())
        self._files.add(path.resolve())
        return path

    def load(self, path: Path, transcript: "Transcript | None" = None) -> None:
        """Go on with a saved conversation in place of this one.

        Args:
            path: its file.
            transcript: what the file holds, if it was read already.

        Raises:
            TranscriptError: it cannot be read.
        """
        transcript = transcript or self._settings.read(path)
        now = self._session.model_name
        if transcript.model != now:
            self.display.notice(f"{path} was held with {transcript.model}, and goes on with {now}")
        self.conversation.restore(transcript)
        self._files.add(path.resolve())
        self._incomplete = False

    @contextmanager
    def _recorded(self, question: "Message") -> Iterator[Record]:
        """A turn's record, which is written at its end if `--jsonl` asks for it."""
        record = Record(
            model=self._session.model_name,
            method=self._settings.method,
            prompt=question.text,
            system=self.conversation.system,
            images=[printable_name(source.name) for source in question.sources],
            device=self._session.device,
            dtype=self._session.dtype,
        )
        with recorded(record, self._settings.jsonl):
            yield record

    def _answer(self, question: "Message", record: Record) -> None:
        """Show an answer, and keep what came of it."""
        said = len(self.conversation.exchanges)
        try:
            events = self.conversation.ask(question, self._interrupts.cancel)
            with closing(events), _ways_out():
                follow(events, self._interrupts, self.display, record)
        finally:
            if len(self.conversation.exchanges) > said:
                self._keep()
        self._answers += 1
        if self._answers % TURNS_BETWEEN_SAVES == 0:
            for notice in self._session.save_memory():
                self.display.notice(notice.message)

    def _keep(self) -> None:
        """Write the transcript if `--save` asks for it."""
        if self._settings.save is not None:
            self.save()


def refuse_to_replace(path: Path) -> None:
    """Raise UsageError where a file that is not empty would be lost, or none can be."""
    with suppress(OSError):  # whoever writes it will say so
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name a file")
        if path.stat().st_size:
            raise UsageError(f"{path} is there already: name another file, or go on with that one")


@contextmanager
def _ways_out() -> Iterator[None]:
    """A full context can be relieved here."""
    try:
        yield
    except ContextError as error:
        raise ContextError(f"{error}; {_ROOM}") from error
