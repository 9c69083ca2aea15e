"""Sessions and conversations that need no model: what they do follows from the model's name.

`python -m tests.recap_cli.fakes ARGS` is `recap ARGS` with such sessions, for tests that need a
process or a terminal of their own.

    remote    repeats the prompt as well
    echo      repeats the prompt, a word a pass, and stops
    long      counts to 200, one after the other
    patient   says one word and waits until it is interrupted
    deaf      goes on after an interrupt, and never ends
    silent    says nothing for a long time
    rude      answers with markup and control characters
    noted     has something to say about itself before and after the answer
    broken    fails after two words
    buggy     fails in a way that nobody foresaw
    full      has no room for a second question
    heavy     takes a long time to open
    missing   cannot be opened
    blind     repeats the prompt, and takes no pictures

Pictures take four tokens each.

The names in FOLDERS are folders where tests run, so that recap takes them for models on disk.
"""

import json
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from engine.errors import ContextError, ModelError, RequestError, TranscriptError
from engine.events import Committed, Encoded, Event, Finished, FinishReason, Notice
from engine.stats import DecodeStats
from engine.tree import DraftTree
from recap_cli import app, sessions

FOLDERS = [
    *("echo", "long", "patient", "deaf", "silent", "heavy", "rude", "noted", "broken", "buggy"),
    *("full", "blind"),
]
RUDE = "[bold]loud[/bold] \x1b[31mred\x1b[0m \x07:smile: ok"


class FakeSession:
    """Behaves like `engine.session.Session` to those who only look at its events."""

    device = "cpu"
    dtype = "float32"

    def __init__(self, model: str) -> None:
        if model == "missing":
            raise ModelError("there is no model missing: name another one")
        if model == "heavy":
            time.sleep(60)
        self.model_name = self._model = model
        self.notices = [Notice("the session has a note")] if model == "noted" else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to write."""

    def generate(self, request: Any, cancel: Any) -> Generator[Event]:
        """Answer as the model's name says."""
        stats = DecodeStats(ttft_s=0.25, decode_s=0.5)
        yield counted(request)
        if self._model == "silent":
            time.sleep(60)
        words = _words(self._model, request.prompt)
        done: list[str] = []
        for word in words:
            if cancel.is_set() and self._model != "deaf":
                break
            if self._model == "broken" and len(done) == 2:
                raise RequestError("the model broke: ask something else")
            if self._model == "buggy":
                raise ValueError("[oops]")
            if self._model == "long":
                time.sleep(0.002)
            stats.count_pass(DraftTree([0, 1], [-1, 0], [0, 1], [-1, 3]), [0, 1], 2)
            done.append(word)
            yield Committed([2 * len(done) - 1, 2 * len(done)], word, stats)
            while self._model in ("patient", "deaf") and not cancel.is_set():
                time.sleep(0.01)
        if self._model == "deaf":
            time.sleep(60)
        reason: FinishReason = "stop" if len(done) == len(words) else "interrupt"
        ids = list(range(1, 2 * len(done) + 1))
        yield Finished(ids, "".join(done), reason, 7, 4 * len(request.images), stats)

    def memory_use(self) -> Any:
        """Some numbers."""
        return SimpleNamespace(contextual_keys=12, token_keys=34, path=Path("fake.safetensors"))

    def save_memory(self) -> list[Notice]:
        """There is no memory to save."""
        return [Notice("the memory has a note")] if self._model == "noted" else []


class FakeConversation:
    """Behaves like `engine.conversation.Conversation` in a `FakeSession`."""

    def __init__(self, session: FakeSession, **settings: Any) -> None:
        self.exchanges: list[Any] = []
        self.system = settings["system"]
        self.max_tokens = settings["max_tokens"]
        self.drop_oldest = settings["drop_oldest"]
        self._session = session

    def ask(self, question: Any, cancel: Any) -> Generator[Event]:
        """Answer as the session does, and keep what was said."""
        if self._session.model_name == "full" and self.exchanges and not self.drop_oldest:
            raise ContextError("no room for it")
        request = SimpleNamespace(prompt=question.text, images=question.images)
        for event in self._session.generate(request, cancel):
            if isinstance(event, Finished):
                self.exchanges.append(exchange(question, event.text, event.stats))
            yield event

    def undo(self) -> Any:
        """The last exchange."""
        return self.exchanges.pop() if self.exchanges else None

    def clear(self) -> None:
        """Nothing was said."""
        self.exchanges.clear()

    def transcript(self) -> Any:
        """What was said."""
        return SimpleNamespace(model=self._session.model_name, exchanges=list(self.exchanges))

    def restore(self, transcript: Any) -> None:
        """Say it again."""
        self.exchanges = list(transcript.exchanges)

    def usage(self) -> Any:
        """Ten tokens an exchange."""
        return SimpleNamespace(used=10 * len(self.exchanges), context_length=64)

    def picture_tokens(self, _: Any) -> int:
        """Four, as `FakeSession` counts them."""
        if self._session.model_name == "blind":
            raise RequestError("the model takes no pictures")
        return 4


def message(text: str, pictures: Sequence[Any]) -> Any:
    """What `engine.prompts.Message` holds of a user's message."""
    return SimpleNamespace(
        text=text,
        images=tuple(picture.image for picture in pictures),
        sources=tuple(picture.origin for picture in pictures),
    )


def exchange(question: Any, answer: str, stats: DecodeStats) -> Any:
    """What `engine.transcript.Exchange` holds, as far as it is shown."""
    return SimpleNamespace(
        question=question,
        answer=answer,
        prompt_tokens=7,
        kept_tokens=2,
        measures=stats.measures(),
    )


def save(path: Path, transcript: Any) -> None:
    """Write what was said."""
    said = [(each.question.text, each.answer) for each in transcript.exchanges]
    try:
        path.write_text(json.dumps(said))
    except OSError as error:
        raise TranscriptError(f"{path}: {error.strerror}") from error


def load(path: Path, _: Any) -> Any:
    """Read what `save` wrote; it was held with the model `echo`."""
    if not path.exists():
        raise TranscriptError(f"there is no {path}")
    said = json.loads(path.read_text())
    stats = DecodeStats()
    return SimpleNamespace(
        model="echo",
        exchanges=[exchange(message(text, ()), answer, stats) for text, answer in said],
    )


def counted(request: Any) -> Encoded:
    """The counts of any request."""
    return Encoded(
        prompt_tokens=7,
        image_tokens=4 * len(request.images),
        answer_tokens=20,
        context_length=64,
        rendered=f"<user>{request.prompt}",
    )


def _words(model: str, prompt: str) -> Sequence[str]:
    if model == "long":
        return [f"{number} " for number in range(1, 201)]
    if model == "rude":
        return [RUDE]
    if model in ("patient", "deaf"):
        return ["wait ", "more "]
    return [word + " " for word in prompt.split()]


def use_fakes(replace: Callable[[Any, str, Any], None]) -> None:
    """Put fake sessions in the place of real ones, by `setattr` or what undoes it later."""
    replace(sessions, "open_session", lambda *, model, **_: FakeSession(model))
    replace(sessions, "start_conversation", FakeConversation)
    replace(sessions, "make_message", message)
    replace(sessions, "save_transcript", save)
    replace(sessions, "load_transcript", load)
    replace(sessions, "dry_run", lambda _, request, **__: iter([counted(request)]))
    replace(
        sessions,
        "make_request",
        lambda prompt, _, images, **options: SimpleNamespace(
            prompt=prompt, images=images, **options
        ),
    )


if __name__ == "__main__":
    use_fakes(setattr)
    app.main()
