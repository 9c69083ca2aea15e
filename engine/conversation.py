"""A conversation: questions and answers, of which each is read with all that was said before it.

It knows what was said and what the model still reads of that. Keys and values of the turns before,
and what was learned in them, are the session's business. Knows no terminal.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from PIL import Image

from engine.decode import Cancel
from engine.errors import ContextError, RequestError
from engine.events import Committed, Encoded, Event, Finished, FinishReason, Notice
from engine.options import DEFAULT_MAX_TOKENS
from engine.prompts import Message
from engine.session import Request, Session
from engine.sizes import PixelLimits
from engine.stats import DecodeStats
from engine.transcript import Exchange, Transcript

NEARLY_FULL = 0.85
"""Share of the context from which on the user is told how full it is."""
KEPT_SHARE = 0.75
"""Share of the context within which question and answer must fit after exchanges were dropped."""


@dataclass(frozen=True, slots=True)
class ContextUse:
    """How full the context is.

    Attributes:
        used: tokens of the conversation up to the end of its last answer.
        context_length: tokens that the model can attend to; None where that is not known.
    """

    used: int
    context_length: int | None


class Conversation:
    """A conversation in a session; the session may have others, and single requests, beside it.

    Attributes:
        exchanges: what was said, the oldest first; read it, do not change it.
        dropped: how many of the oldest exchanges the model does not read any more.
        system: the system message; None for none.
        max_tokens, stop, pixels: of the answers to come, as in `engine.session.Request`.
        drop_oldest: whether a full context drops the oldest exchanges; else it refuses.
    """

    def __init__(
        self,
        session: Session,
        *,
        system: str | None = None,
        stop: Sequence[str] = (),
        pixels: PixelLimits = PixelLimits(),  # noqa: B008  # frozen
        max_tokens: int | None = None,
        drop_oldest: bool = False,
    ) -> None:
        self.exchanges: list[Exchange] = []
        self.dropped = 0
        self.system = system
        self.stop = stop
        self.pixels = pixels
        self.max_tokens = max_tokens
        self.drop_oldest = drop_oldest
        self._session = session
        self._thread = object()  # by which the session knows the conversation

    def ask(
        self, question: Message, cancel: Cancel | None = None, elapsed_s: float = 0.0
    ) -> Generator[Event]:
        """Answer a question; the events are those of `Session.generate`.

        The exchange is there before `Finished` is yielded. An answer that was interrupted, also by
        closing the iterator, is kept as far as it came; one that never began is not.

        Args:
            question: the user's message.
            cancel: ends the answer after the running pass once it is set.
            elapsed_s: seconds already spent on the question, counted into TTFT.

        Raises:
            ContextError: the conversation does not fit into the context.
            RequestError: the question cannot be answered; nothing is added to the conversation.
        """
        yield from self._session.prepare()
        opening, events = self._begin(question, cancel, elapsed_s)
        answer = _Answer(question)
        with closing(events):
            try:
                for event in chain(opening, events):
                    answer.follow(event)
                    if isinstance(event, Finished):
                        self.exchanges.append(answer.exchange())
                    yield event
            except BaseException as error:  # also the end of this iterator
                if answer.broken_off and not isinstance(error, RequestError):
                    self.exchanges.append(answer.exchange())
                raise

    def undo(self) -> Exchange | None:
        """Take the last exchange back, and return it; None where there is none.

        Asking its question again regenerates its answer.
        """
        if not self.exchanges:
            return None
        last = self.exchanges.pop()
        self.dropped = min(self.dropped, len(self.exchanges))
        return last

    def clear(self) -> None:
        """Forget what was said and what was learned from it; system message and settings stay."""
        self.exchanges.clear()
        self.dropped = 0
        self._thread = object()

    def restore(self, transcript: Transcript) -> None:
        """Go on where a transcript ends; what was said before is forgotten.

        Nothing is computed before the next question, which then takes longer.
        """
        self.clear()
        self.system = transcript.system
        self.exchanges += transcript.exchanges
        self.dropped = transcript.dropped

    def transcript(self) -> Transcript:
        """What was said, for `engine.transcript.save_transcript`."""
        return Transcript(
            self._session.model_name, self.system, tuple(self.exchanges), self.dropped
        )

    def usage(self) -> ContextUse:
        """How full the context is."""
        used = self.exchanges[-1].tokens if self.exchanges else 0
        return ContextUse(used, self._session.context_length)

    def picture_tokens(self, image: Image.Image) -> int:
        """Tokens that a picture takes by itself.

        Raises:
            RequestError: the model cannot take it.
        """
        return self._session.picture_tokens(image, self.pixels)

    def _begin(
        self, question: Message, cancel: Cancel | None, elapsed_s: float
    ) -> tuple[list[Event], Generator[Event]]:
        """The events before anything is computed, and those to come.

        The oldest exchanges are dropped where that is wanted and the context has too little room.
        As everything behind them must be read anew, more are dropped at once than would do.
        """
        before = self.dropped
        while True:
            request = self._request(question, elapsed_s)
            events = self._session.generate(request, cancel, self._thread)
            may_drop = self.drop_oldest and self.dropped < len(self.exchanges)
            try:
                opening, encoded = _until_encoded(events)
            except BaseException as error:
                if not (may_drop and isinstance(error, ContextError)):
                    self.dropped = before
                    raise
            else:
                if not (may_drop and self._is_tight(encoded, afresh=self.dropped > before)):
                    return self._told(opening, encoded, self.dropped - before), events
                events.close()
            self.dropped += 1

    def _is_tight(self, encoded: Encoded, *, afresh: bool) -> bool:
        """Whether exchanges should be dropped; `afresh`: some were."""
        length = encoded.context_length
        if length is None:
            return False
        answer = self.max_tokens or min(DEFAULT_MAX_TOKENS, length // 4)
        limit = KEPT_SHARE * length if afresh else length
        return encoded.prompt_tokens + answer > limit

    def _told(self, opening: list[Event], encoded: Encoded, dropped: int) -> list[Event]:
        """The opening, with what the user should read about the context."""
        if dropped:
            turns = "turn is" if dropped == 1 else f"{dropped} turns are"
            notice = Notice(f"the context was full: the oldest {turns} not read any more")
            return [notice, *opening]
        length = encoded.context_length
        if self.drop_oldest or length is None or encoded.prompt_tokens < NEARLY_FULL * length:
            return opening
        share = encoded.prompt_tokens / length
        counts = f"{encoded.prompt_tokens} of {length} tokens"
        notice = Notice(f"the context is {share:.0%} full ({counts}); once it is, nothing fits in")
        return [*opening, notice]

    def _request(self, question: Message, elapsed_s: float = 0.0) -> Request:
        messages = [Message("system", self.system)] if self.system else []
        for exchange in self.exchanges[self.dropped :]:
            messages += [exchange.question, Message("assistant", exchange.answer)]
        return Request(
            [*messages, question],
            max_tokens=self.max_tokens,
            elapsed_s=elapsed_s,
            stop=self.stop,
            pixels=self.pixels,
        )


class _Answer:
    """What becomes of a question, from its events."""

    def __init__(self, question: Message) -> None:
        self._question = question
        self._text = ""
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._prompt_tokens = 0
        self._stats = DecodeStats()

    @property
    def broken_off(self) -> bool:
        """Whether it began and did not end."""
        return bool(self._token_ids) and self._finish_reason is None

    def follow(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Encoded():
                self._prompt_tokens = event.prompt_tokens
            case Committed():
                self._token_ids += event.token_ids
                self._text += event.text
                self._stats = event.stats
            case Finished():
                self._text = event.text
                self._finish_reason = event.finish_reason

    def exchange(self) -> Exchange:
        """The exchange as it stands; it was interrupted where it is not finished."""
        return Exchange(
            question=self._question,
            answer=self._text,
            token_ids=tuple(self._token_ids),
            finish_reason=self._finish_reason or "interrupt",
            prompt_tokens=self._prompt_tokens,
            kept_tokens=self._stats.kept_tokens,
            measures=self._stats.measures(),
        )


def _until_encoded(events: Iterator[Event]) -> tuple[list[Event], Encoded]:
    """The first events, of which the last says what the question costs."""
    opening: list[Event] = []
    for event in events:
        opening.append(event)
        if isinstance(event, Encoded):
            return opening, event
    raise AssertionError("a session says what a question costs")
