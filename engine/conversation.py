"""A conversation: questions and answers, of which each is read with all that was said before it.

It knows what was said and what the model still reads of that. Keys and values of the turns before,
and what was learned in them, are the session's business. Knows no terminal.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from PIL import Image

from engine.decode import Cancel
from engine.events import Encoded, Event, Finished
from engine.prompts import Message
from engine.session import Request, Session
from engine.sizes import PixelLimits
from engine.transcript import Exchange, Transcript

NEARLY_FULL = 0.85
"""Share of the context from which on the user is told how full it is."""


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
        for event in self._session.generate(self._request(question, elapsed_s), cancel):
            if isinstance(event, Finished):
                self.exchanges.append(
                    Exchange(
                        question=question,
                        answer=event.text,
                        token_ids=tuple(event.token_ids),
                        finish_reason=event.finish_reason,
                        prompt_tokens=event.prompt_tokens,
                        kept_tokens=0,
                        measures=event.stats.measures(),
                    )
                )
            yield event

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

    def count(self, question: Message) -> Encoded:
        """What the model would read if this was asked now; nothing is computed.

        Raises:
            ContextError: it does not fit into the context.
            RequestError: it cannot be asked.
        """
        return self._session.count(self._request(question))

    def picture_tokens(self, image: Image.Image) -> int:
        """Tokens that a picture takes by itself.

        Raises:
            RequestError: the model cannot take it.
        """
        return self._session.picture_tokens(image, self.pixels)

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
