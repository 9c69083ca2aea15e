"""What a session says while it answers: the same events for a terminal, a JSON writer, a benchmark.

A request's events come in this order: `Notice`*, `Encoded`, `Notice`*, `Committed`*, `Finished`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.stats import DecodeStats

FinishReason = Literal["stop", "length", "interrupt"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One line that the user should read; never an error."""

    message: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """The request is counted; nothing has been computed yet.

    Attributes:
        prompt_tokens: tokens that the model reads, those of pictures included.
        image_tokens: how many of them stand for pictures.
        answer_tokens: longest answer.
        context_length: tokens that the model can attend to; None where that is not known.
        rendered: the prompt as the chat template wrote it, one placeholder a picture.
    """

    prompt_tokens: int
    image_tokens: int
    answer_tokens: int
    context_length: int | None
    rendered: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that are final, and the text that became whole with them (may be empty).

    `stats` is the request's live record: read it, do not keep it across events.
    """

    token_ids: Sequence[int]
    text: str
    stats: DecodeStats


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole answer; always the last event, also after an interrupt.

    `token_ids` holds every token committed, the stop token included when there was one; `text`
    equals the tokenizer's decoding of them without special tokens. Where a stop string ended the
    answer, `token_ids` ends with the token that completed it, and `text` before it.
    """

    token_ids: Sequence[int]
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    image_tokens: int
    stats: DecodeStats


Event = Notice | Encoded | Committed | Finished
