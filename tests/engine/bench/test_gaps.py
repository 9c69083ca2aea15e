"""How near a tie it was where an answer left the plain loop's."""

from collections.abc import Sequence

import pytest
import torch

from engine.bench.conversations import Conversations
from engine.bench.document import Record, mark_differences
from engine.bench.gaps import measure_gaps, partings, plain_logits
from engine.bench.protocol import Plan
from engine.bench.workloads import Task, TaskTurn
from engine.loading import LoadedModel
from engine.session import Request
from engine.target import Target
from tests.engine.bench.documents import failed, record
from tests.zoo import ANSWER, Zoo, conversations, finished, session

QUESTION = "How many circles are there?"
PLAN = Plan((), (), ANSWER)


def answered(contender: str, ids: Sequence[int], task: str = "a") -> Record:
    found = record(contender, task)
    found["token_ids"] = list(ids)
    return found


@pytest.mark.parametrize(
    ("family", "penalty"), [("llama", None), ("llama", 1.05), ("qwen2_5_vl", None)]
)
def test_they_are_the_logits_from_which_the_plain_loop_chose(
    zoo: Zoo, family: str, penalty: float | None
) -> None:
    loaded = zoo.loaded(family, torch.float32, penalty)
    messages = conversations(loaded.family.vision)[-1]
    ids = finished(session(loaded, "plain"), messages).token_ids
    target = Target(loaded.model, loaded.family)
    rows = list(plain_logits(loaded, target, Request(messages, ANSWER), ids))
    assert [int(row.argmax()) for row in rows] == list(ids)


def test_only_what_can_be_compared_is_asked_again() -> None:
    records = [
        answered("plain", [1, 2, 3]),
        answered("same", [1, 2, 3]),
        answered("other", [1, 2, 9]),
        answered("shorter", [1, 2]),
        failed("broken"),
        answered("plain", [1], "b"),
        answered("same", [1], "b"),
    ]
    known = answered("known", [1, 7, 3])
    known["difference"] = {"position": 1, "gap": 0.5}
    mark_differences(records)
    (found,) = partings([*records, known])
    assert (found.task, found.turn, found.expected) == ("a", 0, [1, 2, 3])
    assert found.others == [({"position": 2, "gap": None}, 9)]


def test_the_gap_is_between_the_two_tokens_logits(zoo: Zoo) -> None:
    loaded: LoadedModel = zoo.loaded("llama", torch.float32, None)
    talk = Conversations(loaded, [Task("a", "text", (TaskTurn(QUESTION),))])
    request = talk.request("a", 0, ANSWER)
    ids = list(finished(session(loaded, "plain"), request.messages).token_ids)
    rows = list(plain_logits(loaded, Target(loaded.model, loaded.family), request, ids))
    runners_up = [int(row.topk(2).indices[1]) for row in rows]
    others = [answered(f"at {at}", [*ids[:at], runners_up[at]]) for at in (0, 3, len(ids) - 1)]
    records = [answered("plain", ids), *others]
    mark_differences(records)
    assert len(list(measure_gaps(loaded, talk, partings(records), PLAN))) == 1
    for other in others:
        assert other["difference"] is not None
        at = other["difference"]["position"]
        first, second = rows[at].topk(2).values.tolist()
        assert other["difference"]["gap"] == pytest.approx(first - second, abs=1e-5)
    assert partings(records) == []


def test_a_picture_that_is_gone_leaves_the_gap_open(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    talk = Conversations(loaded, [Task("a", "text", (TaskTurn(QUESTION, ("/nowhere/a.png",)),))])
    other = answered("recap", [1, 9])
    records = [answered("plain", [1, 2]), other]
    mark_differences(records)
    list(measure_gaps(loaded, talk, partings(records), PLAN))
    assert other["difference"] == {"position": 1, "gap": None}
