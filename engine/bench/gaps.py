"""How near a tie it was where an answer left the plain loop's: the gap of the two tokens' logits.

Logits of whole answers would take gigabytes, so they are not kept: plain decoding is repeated along
its own answer, and looked at where others chose differently.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor

from engine.bench.conversations import Conversations
from engine.bench.document import PLAIN, Difference, Record
from engine.bench.protocol import Plan
from engine.device_memory import within_memory
from engine.errors import RequestError
from engine.loading import LoadedModel
from engine.logits import GreedyRules
from engine.preparing import prepare
from engine.session import Request
from engine.target import Target
from engine.tree import DraftTree


@dataclass(slots=True)
class Parting:
    """A prompt at which answers left the plain loop's.

    Attributes:
        task: its id.
        turn: from 0.
        expected: the plain loop's answer.
        others: the differences whose gap is not measured, and the tokens chosen there.
    """

    task: str
    turn: int
    expected: list[int]
    others: list[tuple[Difference, int]] = field(default_factory=list)


def partings(records: Sequence[Record]) -> list[Parting]:
    """Where there is something to measure, in the records' order.

    Where one answer is the beginning of the other, there are no two tokens to compare.
    """
    found = {
        (record["task"], record["turn"]): Parting(record["task"], record["turn"], ids)
        for record in records
        if record["contender"] == PLAIN
        and record["repetition"] == 0
        and (ids := record["token_ids"]) is not None
    }
    for record in records:
        difference, ids = record["difference"], record["token_ids"]
        if difference is None or ids is None or difference["gap"] is not None:
            continue
        parting, position = found[record["task"], record["turn"]], difference["position"]
        if position < min(len(ids), len(parting.expected)):
            parting.others.append((difference, ids[position]))
    return [parting for parting in found.values() if parting.others]


def measure_gaps(
    loaded: LoadedModel,
    conversations: Conversations,
    found: Sequence[Parting],
    plan: Plan,
) -> Iterator[None]:
    """Fill in the gaps; yields after each prompt. What cannot be asked again stays open."""
    target = Target(loaded.model, loaded.family)
    if found:
        for _ in prepare(target, compile=plan.compile):
            pass
    for parting in found:
        with suppress(RequestError), within_memory():
            request = conversations.request(parting.task, parting.turn, plan.max_tokens)
            _measure(loaded, target, request, parting)
        yield


def _measure(loaded: LoadedModel, target: Target, request: Request, parting: Parting) -> None:
    last = max(difference["position"] for difference, _ in parting.others)
    rows = plain_logits(loaded, target, request, parting.expected[: last + 1])
    for position, (logits, best) in enumerate(zip(rows, parting.expected, strict=False)):
        for difference, token in parting.others:
            if difference["position"] == position:
                difference["gap"] = round(float(logits[best] - logits[token]), 6)


def plain_logits(
    loaded: LoadedModel, target: Target, request: Request, answer: Sequence[int]
) -> Iterator[Tensor]:
    """[vocab] float32 logits from which the plain loop chose each token of its answer.

    Raises:
        RequestError: the request cannot be answered.
    """
    prompt = loaded.encoder.encode(request.messages, request.pixels)
    rules = GreedyRules(loaded.model.generation_config, sorted(loaded.stop_ids))
    history: list[int] = prompt.input_ids[0].tolist()
    rules.start(len(history), request.max_tokens or len(answer), target.device)
    logits = target.prefill(prompt, len(answer))
    yield rules.apply(logits, DraftTree([history[-1]]), history)[0]
    for token in answer[:-1]:
        history.append(token)
        tree = DraftTree([token])
        logits = target.verify(tree)
        target.keep([0])
        yield rules.apply(logits, tree, history)[0]
