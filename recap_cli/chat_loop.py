"""`recap chat` from its first entry to its last: what is opened, and what an error means."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import RecapError
from engine.sizes import PixelLimits
from recap_cli import sessions
from recap_cli.chat_commands import load, run, show_queued
from recap_cli.chat_entries import instruction, message
from recap_cli.chat_input import piped_entries, typed_entries
from recap_cli.chat_talk import Settings, Talk
from recap_cli.render import Display, View
from recap_cli.signals import Interrupts

if TYPE_CHECKING:
    from engine.conversation import Conversation
    from engine.session import Session


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a conversation begins, as the flags have it; see `engine.conversation.Conversation`."""

    images: Sequence[str] = ()
    resume: Path | None = None
    system: str | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    pixels: PixelLimits = field(default_factory=PixelLimits)
    drop_oldest: bool = False
    history: Path | None = None

    def conversation(self, session: "Session") -> "Conversation":
        """A conversation in which nothing was said."""
        return sessions.start_conversation(
            session,
            system=self.system,
            max_tokens=self.max_tokens,
            stop=self.stop,
            pixels=self.pixels,
            drop_oldest=self.drop_oldest,
        )


def chat(
    beginning: Beginning, settings: Settings, open_session: Callable[..., "Session"], view: View
) -> bool:
    """Lead a conversation to its end; whether all entries of a pipe were good.

    Raises:
        RecapError: it could not begin.
        Interrupted: a signal ended it; what was said is learned, and saved if that is wanted.
    """
    with Interrupts(), Display(view) as display:
        tell = display.notice
        transcript = settings.read(beginning.resume) if beginning.resume else None
        if transcript and not settings.named:
            settings = replace(settings, model=transcript.model)
        pictures = settings.open_pictures(beginning.images, tell)
        display.loading(settings.model, local=sessions.is_local(settings.model))
        with open_session(model=settings.model, progress=display.animated) as session:
            for notice in session.notices:
                tell(notice.message)
            talk = Talk(session, beginning.conversation(session), display, settings)
            try:
                if beginning.resume:
                    load(talk, beginning.resume, transcript)
                if beginning.system:
                    talk.conversation.system = beginning.system
                if pictures:
                    show_queued(display, talk.queue(pictures))
                if settings.save:
                    talk.save()
                return _lead(talk, _entries(talk, settings, beginning))
            finally:
                for notice in session.save_memory():
                    tell(notice.message)


def _entries(talk: Talk, settings: Settings, beginning: Beginning) -> Iterable[str]:
    if not settings.interactive:
        return piped_entries()
    tell = talk.display.notice
    tell("/help shows the commands; Ctrl-D leaves")
    return typed_entries(beginning.history, lambda: len(talk.queued), tell)


def _take(talk: Talk, entry: str) -> None:
    typed = instruction(entry)
    if typed:
        run(talk, typed)
    else:
        talk.ask(message(entry))


def _lead(talk: Talk, entries: Iterable[str]) -> bool:
    """Take entry after entry; whether all were good."""
    good = True
    for entry in entries:
        try:
            with talk.entry():
                _take(talk, entry)
        except RecapError as error:
            good = False
            talk.display.error(str(error))
        if talk.over:
            break
    return good
