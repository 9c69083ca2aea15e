"""A session owns the model, its cache and its memories, and answers requests one at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self

from engine.events import Event, Notice
from engine.options import DEFAULT_MAX_TOKENS, DrafterOptions
from engine.prompts import Message

Method = Literal["recap", "plain"]
DEMO_MODEL = "demo"


class Cancel(Protocol):
    """Asked between passes; `threading.Event` fits."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session is opened with.

    Attributes:
        model: `demo`, a Hugging Face id, or a model folder.
        device: `auto`, `cpu`, `cuda` or `mps`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        method: how tokens are drafted.
        memory: whether the token memory's file is read and written.
        memory_file: that file; None is the default one of the model's tokenizer.
        drafter: constants of the drafter.
    """

    model: str = DEMO_MODEL
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    method: Method = "recap"
    memory: bool = True
    memory_file: Path | None = None
    drafter: DrafterOptions = field(default_factory=DrafterOptions)


@dataclass(frozen=True, slots=True)
class Request:
    """One conversation to answer: the last message is the user's."""

    messages: Sequence[Message]
    max_tokens: int = DEFAULT_MAX_TOKENS


class Session:
    """Use as a context manager; leaving it writes the token memory's file."""

    model_name: str
    device: str
    dtype: str

    @classmethod
    def open(cls, options: SessionOptions) -> Self:
        """Load model, processor and token memory.

        Raises:
            UsageError: an impossible choice (e.g. a device that is not there).
            ModelError: the model cannot be found, loaded or used.
        """
        raise NotImplementedError

    def generate(self, request: Request, cancel: Cancel | None = None) -> Iterator[Event]:
        """Answer one request; see `engine.events` for the order of events.

        Setting `cancel` ends the answer after the running pass with `finish_reason="interrupt"`.
        Closing the iterator early is allowed and leaves the session good for the next request.

        Raises:
            RequestError: this request cannot be answered; the session stays usable.
        """
        raise NotImplementedError

    def save_memory(self) -> list[Notice]:
        """Merge what was learned into the memory's file; a failure is a notice, never an error."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.save_memory()
