"""Conversations: however they went, every answer is transformers' own on all that was said.

The reference reads the whole conversation afresh; ours reads what is new.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.conversation import KEPT_SHARE, ContextUse, Conversation
from engine.errors import ContextError, PromptError, RequestError
from engine.events import Committed, Encoded, Event, Finished, Notice
from engine.families import FAMILIES
from engine.loading import LoadedModel, load_model
from engine.options import DrafterOptions
from engine.prompts import Message
from engine.session import Request, Session
from engine.sizes import PixelLimits
from engine.transcript import Exchange
from tests.models import picture
from tests.zoo import Zoo, finished, generated, session

TOKENS = 12
"""Of the longest answer."""
SOME = pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "llava_next", "llama"])
"""Rotary positions in three axes, pictures that see themselves, inputs with padding, text alone."""


def question(loaded: LoadedModel, text: str, *seeds: int) -> Message:
    """A question about pictures of different sizes, as far as the model sees."""
    sizes = [(57, 57), (113, 112), (161, 40), (37, 91)]
    shots = [picture(*sizes[seed % 4], seed) for seed in seeds if loaded.family.vision]
    return Message("user", text, tuple(shots))


class Checked:
    """A conversation whose every answer is compared with the reference's."""

    def __init__(self, loaded: LoadedModel, reference: Any, **settings: Any) -> None:
        self.loaded = loaded
        self.session = session(loaded)
        self.conversation = Conversation(self.session, max_tokens=TOKENS, **settings)
        self._reference = reference

    def ask(self, text: str, *seeds: int) -> Exchange:
        asked = question(self.loaded, text, *seeds)
        expected = self.expected(asked)
        list(self.conversation.ask(asked))
        last = self.conversation.exchanges[-1]
        assert list(last.token_ids) == expected
        return last

    def expected(self, asked: Message) -> list[int]:
        ours = self.conversation
        said = [Message("system", ours.system)] if ours.system else []
        for exchange in ours.exchanges[ours.dropped :]:
            said += [exchange.question, Message("assistant", exchange.answer)]
        prompt = self.loaded.encoder.encode([*said, asked], ours.pixels)
        return generated(self._reference, prompt, ours.max_tokens or TOKENS)


def checked(zoo: Zoo, family: str, **settings: Any) -> Checked:
    loaded = zoo.loaded(family, torch.float32, None)
    return Checked(loaded, zoo.reference(family, torch.float32, None), **settings)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_answers_are_those_to_the_whole_conversation(zoo: Zoo, family: str) -> None:
    ours = checked(zoo, family)
    first = ours.ask("What do you see?", 0)
    ours.ask("Describe it.")
    ours.ask("And this one?", 1)
    fourth = ours.ask("Which of these is larger?", 2, 3)
    fifth = ours.ask("Are you sure?")
    assert first.kept_tokens == 0
    if FAMILIES[family].causal:
        assert fifth.kept_tokens >= fourth.prompt_tokens - 1, "only the new turn was read"


def test_the_demo_model_s_answers_are_not_read_again() -> None:
    loaded = load_model("demo", "cpu")
    ours = Checked(loaded, loaded.model)
    before = ours.ask("Describe the picture.", 0)
    for text, seeds in (("How many shapes are there?", ()), ("And here?", (1,)), ("Sure?", ())):
        last = ours.ask(text, *seeds)
        assert last.kept_tokens == before.tokens - 1, "all but the token that was chosen last"
        before = last


@SOME
def test_after_an_interrupted_answer(zoo: Zoo, family: str) -> None:
    ours, cancel = checked(zoo, family), threading.Event()
    ours.ask("What do you see?", 0)
    asked = question(ours.loaded, "And this one?", 1)
    expected = ours.expected(asked)
    for event in ours.conversation.ask(asked, cancel):
        if isinstance(event, Committed):
            cancel.set()
    last = ours.conversation.exchanges[-1]
    assert last.finish_reason == "interrupt"
    assert list(last.token_ids) == expected[: len(last.token_ids)]
    assert 0 < len(last.token_ids) < TOKENS
    ours.ask("Go on.", 2)
    ours.ask("Are you sure?")


@SOME
@pytest.mark.parametrize("events", [1, 2, 3, 4])
def test_after_an_answer_that_nobody_waited_for(zoo: Zoo, family: str, events: int) -> None:
    ours = checked(zoo, family)
    ours.ask("What do you see?", 0)
    answer = ours.conversation.ask(question(ours.loaded, "And this one?", 1))
    seen = [next(answer) for _ in range(events)]
    answer.close()
    said = [event for event in seen if isinstance(event, Committed)]
    assert len(ours.conversation.exchanges) == 1 + bool(said)
    if said:
        last = ours.conversation.exchanges[-1]
        assert last.answer == "".join(event.text for event in said)
        assert last.token_ids == tuple(token for event in said for token in event.token_ids)
        assert last.finish_reason == "interrupt"
        assert last.prompt_tokens > 20
    ours.ask("Which of these is larger?", 2, 3)
    ours.ask("Are you sure?")


@SOME
def test_after_undo(zoo: Zoo, family: str) -> None:
    ours = checked(zoo, family)
    first = ours.ask("What do you see?", 0)
    second = ours.ask("And this one?", 1)
    assert ours.conversation.undo() == second
    # The same words and the same number of tokens, but about another picture.
    other = ours.ask("And this one?", 5)
    assert other.prompt_tokens == second.prompt_tokens
    assert other.kept_tokens >= first.prompt_tokens - 1
    assert ours.conversation.undo() == other
    assert ours.conversation.undo() == first
    assert ours.conversation.undo() is None
    ours.ask("What do you see?", 4)
    ours.ask("And this one?", 1)


def test_an_answer_is_regenerated_without_reading_anything_twice(zoo: Zoo) -> None:
    ours = checked(zoo, "qwen2_5_vl")
    ours.ask("What do you see?", 0, 1)
    ours.conversation.undo()
    again = ours.ask("What do you see?", 0, 1)
    assert again.kept_tokens == again.prompt_tokens - 1


@SOME
def test_after_a_change_of_what_was_said_first(zoo: Zoo, family: str) -> None:
    ours = checked(zoo, family)
    ours.ask("What do you see?", 0)
    ours.conversation.system = "Be brief."
    ours.ask("Describe it.")
    ours.conversation.system = "Be brief. Be kind."
    ours.ask("And this one?", 1)
    ours.conversation.clear()
    assert ours.ask("What do you see?", 2).kept_tokens == 0
    ours.conversation.pixels = PixelLimits(most=2000)
    ours.ask("And this one?", 1)


@SOME
def test_conversations_of_one_session_do_not_mix(zoo: Zoo, family: str) -> None:
    ours = checked(zoo, family)
    ours.ask("What do you see?", 0)
    theirs = Conversation(ours.session, max_tokens=TOKENS)
    list(theirs.ask(question(ours.loaded, "What do you see?", 1)))
    ours.ask("Describe it.")
    finished(ours.session, [question(ours.loaded, "What do you see?", 2)])
    assert ours.ask("And this one?", 1).kept_tokens == 0
    assert ours.ask("Are you sure?").kept_tokens > 0


def test_a_question_that_cannot_be_asked_changes_nothing(zoo: Zoo) -> None:
    ours = checked(zoo, "qwen2_5_vl")
    first = ours.ask("What do you see?", 0)
    shot = picture(57, 57)
    for wrong, error in [
        (Message("user", "What {2}?", (shot,), template=True), PromptError),
        (Message("user", "circle " * 5000), ContextError),
    ]:
        with pytest.raises(error):
            list(ours.conversation.ask(wrong))
    assert ours.conversation.exchanges == [first]
    assert ours.ask("And this one?", 1).kept_tokens >= first.prompt_tokens


@pytest.mark.parametrize("step", ["prefill", "verify"])
def test_after_a_device_ran_out_of_memory(
    zoo: Zoo, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = checked(zoo, "qwen2_5_vl")
    first = ours.ask("What do you see?", 0)

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("1 TiB")

    with monkeypatch.context() as patch:
        patch.setattr(f"engine.target.Target.{step}", full)
        with pytest.raises(RequestError, match="ran out of memory"):
            list(ours.conversation.ask(question(ours.loaded, "And this one?", 1)))
    assert ours.conversation.exchanges == [first]
    ours.ask("And this one?", 1)
    ours.ask("Are you sure?")


def test_an_answer_without_a_word_is_an_answer(zoo: Zoo) -> None:
    ours = checked(zoo, "qwen2")
    ours.conversation.max_tokens = 1
    assert len(ours.ask("What do you see?").token_ids) == 1
    ours.conversation.max_tokens = TOKENS
    ours.ask("Go on.")


def test_stop_strings_and_lengths_can_change_in_between(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    ours = Conversation(session(loaded), max_tokens=TOKENS)
    *_, last = ours.ask(question(loaded, "How many circles are there?"))
    assert isinstance(last, Finished)
    ours.undo()
    ours.stop = (last.text[2:5],)
    list(ours.ask(question(loaded, "How many circles are there?")))
    assert ours.exchanges[-1].answer == last.text[: last.text.index(last.text[2:5])]
    assert ours.exchanges[-1].finish_reason == "stop"


# What is learned


def test_what_was_learned_in_a_conversation_serves_it_alone(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    asked = Message("user", "12 12 12 12 12 12")
    # Trees whose size does not depend on the clock.
    ours = session(loaded, drafter=DrafterOptions(adaptive=False, suffix=False))
    talk = Conversation(ours, max_tokens=24)
    list(talk.ask(asked))
    before = contextual(talk.undo())
    list(talk.ask(asked))
    again = contextual(talk.undo())
    talk.clear()
    list(talk.ask(asked))
    anew = contextual(talk.undo())
    assert again > before
    assert again > anew


def contextual(exchange: Exchange | None) -> int:
    """Tokens accepted that a two- or three-token key knew."""
    assert exchange is not None
    sources: Any = exchange.measures["sources"]
    return int(sum(sources[f"contextual-{n}"]["accepted"] for n in (2, 3)))


# The context


def short(zoo: Zoo, length: int) -> Session:
    return session(replace(zoo.loaded("llama", torch.float32, None), context_length=length))


HELLO = Message("user", "How many circles are there?")


def tell(conversation: Conversation, asked: Message = HELLO) -> list[Event]:
    return list(conversation.ask(asked))


def notices(events: Sequence[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice)]


def test_how_full_the_context_is(zoo: Zoo) -> None:
    ours = Conversation(short(zoo, 300), max_tokens=TOKENS)
    assert ours.usage() == ContextUse(0, 300)
    *_, last = tell(ours)
    assert isinstance(last, Finished)
    assert ours.usage() == ContextUse(last.prompt_tokens + len(last.token_ids), 300)
    ours.clear()
    assert ours.usage().used == 0


def test_what_a_picture_takes(zoo: Zoo) -> None:
    loaded = zoo.loaded("qwen2_5_vl", torch.float32, None)
    ours = Conversation(session(loaded), max_tokens=TOKENS)
    shot = picture(113, 112)
    alone = ours.picture_tokens(shot)
    for pictures in (1, 2):
        encoded = tell(ours, Message("user", "What?", (shot,)))[0]
        assert isinstance(encoded, Encoded)
        assert encoded.image_tokens == pictures * alone
        assert ours.picture_tokens(shot) == alone
    ours.pixels = PixelLimits(most=4000)
    assert ours.picture_tokens(shot) < alone


def test_a_context_that_is_nearly_full_is_said_and_a_full_one_refuses(zoo: Zoo) -> None:
    ours = Conversation(short(zoo, 600), max_tokens=TOKENS)
    shares: list[tuple[float, list[str]]] = []
    with suppress(ContextError):
        while True:
            events = tell(ours)
            encoded = next(event for event in events if isinstance(event, Encoded))
            shares.append((encoded.prompt_tokens / 600, notices(events)))
    with pytest.raises(ContextError, match=r"answer tokens do not fit into the model's 600"):
        tell(ours)
    assert [share >= 0.85 for share, _ in shares] == [bool(said) for _, said in shares]
    assert f"{shares[-1][0]:.0%} full" in shares[-1][1][0]
    said = len(ours.exchanges)
    ours.undo()
    tell(ours)
    assert len(ours.exchanges) == said


def test_the_oldest_turns_are_dropped_if_that_is_wanted(zoo: Zoo) -> None:
    loaded = zoo.loaded("qwen2_5_vl", torch.float32, None)
    narrow = replace(loaded, context_length=260)
    ours = Checked(narrow, zoo.reference("qwen2_5_vl", torch.float32, None), drop_oldest=True)
    ours.conversation.system = "Be brief."
    said: list[str] = []
    for turn in range(8):
        asked = question(loaded, "What do you see?", turn)
        before = ours.conversation.dropped
        events = tell(ours.conversation, asked)
        exchanges, dropped = ours.conversation.exchanges, ours.conversation.dropped
        exchange = exchanges.pop()
        assert list(exchange.token_ids) == ours.expected(asked)
        exchanges.append(exchange)
        assert bool(notices(events)) == (dropped > before)
        if dropped > before:
            assert exchange.prompt_tokens + TOKENS <= KEPT_SHARE * 260
            said += notices(events)
    assert len(exchanges) == 8, "what is not read any more is still there"
    assert 0 < dropped < 7
    assert "oldest" in said[0]
    for _ in range(8):
        ours.conversation.undo()
    assert ours.conversation.dropped == 0


def test_a_question_that_is_too_long_by_itself_drops_nothing(zoo: Zoo) -> None:
    ours = Conversation(short(zoo, 120), max_tokens=TOKENS, drop_oldest=True)
    tell(ours)
    with pytest.raises(ContextError):
        tell(ours, Message("user", "circle " * 200))
    assert (ours.dropped, len(ours.exchanges)) == (0, 1)


def test_without_a_limit_dropping_leaves_an_answer_room(zoo: Zoo) -> None:
    ours = Conversation(short(zoo, 200), drop_oldest=True)
    for _ in range(6):
        encoded = next(event for event in tell(ours) if isinstance(event, Encoded))
        assert encoded.answer_tokens >= 50
    assert ours.dropped


def test_the_session_answers_single_requests_in_between(zoo: Zoo) -> None:
    ours = short(zoo, 300)
    talk = Conversation(ours, max_tokens=TOKENS)
    tell(talk)
    alone = finished(ours, [HELLO], TOKENS)
    *_, fresh = short(zoo, 300).generate(Request([HELLO], TOKENS))
    assert isinstance(fresh, Finished)
    assert alone.token_ids == fresh.token_ids
    assert alone.stats.kept_tokens == 0
