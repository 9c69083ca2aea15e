"""One question answered on a terminal: inputs, session, display and record brought together."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from engine.events import Committed, Encoded, Event, Finished, Notice
from engine.image_sources import printable_name
from engine.images import ImageOptions, Picture
from engine.sizes import PixelLimits
from recap_cli import sessions
from recap_cli.inputs import open_pictures, read_prompt, warn_of_other_pictures
from recap_cli.options import DEMO_MODEL
from recap_cli.records import Record
from recap_cli.render import Display, View
from recap_cli.signals import Interrupted, Interrupts

if TYPE_CHECKING:
    from engine.session import Request, Session


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, as the flags have it."""

    model: str
    method: str
    prompt: str | None
    file: str | None
    images: Sequence[str]
    image_options: ImageOptions
    system: str | None
    max_tokens: int | None
    stop: Sequence[str] = ()
    pixels: PixelLimits = field(default_factory=PixelLimits)
    template: bool = False

    def request(self, prompt: str, pictures: Sequence[Picture], elapsed_s: float) -> "Request":
        """The request, once prompt and pictures are read, which took `elapsed_s`."""
        return sessions.make_request(
            prompt,
            self.system,
            [picture.image for picture in pictures],
            max_tokens=self.max_tokens,
            elapsed_s=elapsed_s,
            stop=self.stop,
            pixels=self.pixels,
            template=self.template,
        )


def answer(
    question: Question,
    open_session: Callable[..., "Session"],
    view: View,
    *,
    json: bool,
    dry_run: bool = False,
) -> None:
    """Answer a question and show what `view` asks for, with one JSON object at the end if `json`.

    `open_session` takes `progress`: whether a download may show how far it is. With `dry_run` the
    request is read and counted, and nothing is computed.

    Raises:
        RecapError: there is no answer, or only the part that was shown.
        Interrupted: a signal ended it; what was decoded until then is shown and learned.
    """
    record = Record(
        model=question.model,
        method=question.method,
        system=question.system,
        images=[printable_name(source) for source in question.images],
    )
    with Interrupts() as interrupts, recorded(record, json), Display(view) as display:
        tell = partial(_tell, record, display)
        record.prompt = read_prompt(question.prompt, question.file, question.images)
        started = perf_counter()
        pictures = open_pictures(question.images, question.image_options, tell)
        opening_s = perf_counter() - started
        if question.model == DEMO_MODEL:
            warn_of_other_pictures(pictures, tell)
        display.loading(question.model, local=sessions.is_local(question.model))
        if dry_run:
            request = question.request(record.prompt, pictures, opening_s)
            counting = sessions.dry_run(question.model, request, progress=display.animated)
            follow(counting, interrupts, display, record)
            assert record.encoded is not None, "the last event of a dry run"
            display.counted(record.encoded)
            return
        with open_session(progress=display.animated) as session:
            record.model = session.model_name
            record.device, record.dtype = session.device, session.dtype
            for notice in session.notices:
                tell(notice.message)
            request = question.request(record.prompt, pictures, opening_s)
            try:
                with closing(session.generate(request, interrupts.cancel)) as events:
                    follow(events, interrupts, display, record)
            finally:
                for notice in session.save_memory():
                    tell(notice.message)
    if interrupts.signum is not None:
        raise Interrupted(interrupts.signum)


def follow(
    events: Iterable[Event], interrupts: Interrupts, display: Display, record: Record
) -> None:
    """Pass the events of one request on to those who keep and show them."""
    for event in events:
        match event:
            case Notice():
                _tell(record, display, event.message)
            case Encoded():
                record.encoded = event
                display.reading(event)
            case Committed():
                interrupts.graceful = True
                record.commit(event)
                display.committed(event)
            case Finished():
                interrupts.graceful = False
                record.finish(event)
                display.finished(event)


@contextmanager
def recorded(record: Record, wanted: bool) -> Iterator[None]:
    """Write the record as JSON if that is wanted, whatever becomes of the request."""
    try:
        yield
    except BaseException as error:
        record.error = str(error) or type(error).__name__
        raise
    finally:
        if wanted:
            sys.stdout.buffer.write(record.to_json())
            sys.stdout.buffer.flush()


def _tell(record: Record, display: Display, message: str) -> None:
    """Keep and show what the user should read."""
    record.notices.append(message)
    display.notice(message)
