"""A session that needs no model: what it does follows from the model's name.

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
    heavy     takes a long time to open
    missing   cannot be opened

The names in FOLDERS are folders where tests run, so that recap takes them for models on disk.
"""

import time
from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any, Self

from engine.errors import ModelError, RequestError
from engine.events import Committed, Encoded, Event, Finished, FinishReason, Notice
from engine.stats import DecodeStats
from engine.tree import DraftTree
from recap_cli import app, sessions

FOLDERS = ["echo", "long", "patient", "deaf", "silent", "heavy", "rude", "noted", "broken", "buggy"]
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

    def save_memory(self) -> list[Notice]:
        """There is no memory to save."""
        return [Notice("the memory has a note")] if self._model == "noted" else []


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
