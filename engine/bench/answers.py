"""One request answered by a contender of our own loop, and what an answer is to a benchmark.

Contenders outside our loop are in `foreign`. Knows no prompts' file, no order and no record.
"""

from dataclasses import dataclass
from typing import Any

from engine.drafters.base import Drafter
from engine.events import Committed, Finished
from engine.session import Request, Session


@dataclass(frozen=True, slots=True)
class Answer:
    """What a contender answered, under the names of the document's records.

    `committed` holds the tokens that each verify pass committed, in order, without those that came
    from the prefill.
    """

    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    image_tokens: int
    committed: list[int]
    measures: dict[str, Any]


def answer(session: Session, drafter: Drafter, request: Request) -> Answer:
    """Answer a request with what a drafter knows so far, which learns from it.

    Raises:
        RequestError: this request cannot be answered.
    """
    session.draft_with(drafter)
    sizes: list[int] = []
    for event in session.generate(request):
        match event:
            case Committed():
                sizes.append(len(event.token_ids))
            case Finished():
                finished = event
    return Answer(
        token_ids=list(finished.token_ids),
        finish_reason=finished.finish_reason,
        prompt_tokens=finished.prompt_tokens,
        image_tokens=finished.image_tokens,
        committed=[size for size in sizes[1:] if size],
        measures=finished.stats.measures(),
    )
