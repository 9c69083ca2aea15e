"""A session: limits, ends, events and files of its requests; none of them harms the next."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.drafters.recap import Recap, RecapDrafter
from engine.drafters.recap_native import NativeRecapDrafter
from engine.errors import ContextError, PromptError, RequestError, UsageError
from engine.events import Committed, Encoded, Event, Finished, Notice
from engine.memory.file import read_memory
from engine.memory.paths import memory_path, tokenizer_fingerprint
from engine.memory.transitions import TokenMemory
from engine.options import DEFAULT_MAX_TOKENS, DrafterOptions
from engine.prompts import Message
from engine.session import MemoryUse, Request, Session, SessionOptions
from engine.text import REPLACEMENT
from tests.models import picture
from tests.zoo import ANSWER, Zoo, answers, conversations, finished, session

HELLO = (Message("user", "How many circles are there?"),)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
@pytest.mark.parametrize("events", [1, 2, 3, 5])
def test_after_an_answer_that_was_closed_early_the_next_is_right(
    zoo: Zoo, family: str, events: int
) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    expected = zoo.answers(family, torch.float32, None)
    asked = conversations(loaded.family.vision)
    ours = session(loaded)
    answer = ours.generate(Request(asked[1], ANSWER))
    for _ in range(events):
        next(answer)
    answer.close()
    assert finished(ours, asked[-1]).token_ids == expected[-1]
    assert finished(ours, asked[1]).token_ids == expected[1]


def test_after_a_request_that_failed_the_next_is_right(zoo: Zoo) -> None:
    loaded = zoo.loaded("qwen2_5_vl", torch.float32, None)
    ours = session(loaded)
    for wrong, error in [
        ((), PromptError),
        ((Message("user", "{2}", (picture(30, 30),), template=True),), RequestError),
        ((Message("user", "circle " * 5000),), ContextError),
    ]:
        with pytest.raises(error):
            list(ours.generate(Request(wrong, ANSWER)))
    expected = zoo.answers("qwen2_5_vl", torch.float32, None)
    assert answers(ours, vision=True) == expected


@pytest.mark.parametrize("step", ["Target.prefill", "Target.prompt_logits", "Target.verify"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("1 TiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:128] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GiB)"),
    ],
    ids=["cuda", "cpu", "mps"],
)
def test_a_device_without_memory_fails_the_request_alone(
    zoo: Zoo, step: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = session(zoo.loaded("llama", torch.float32, None))
    expected = finished(ours, HELLO).token_ids

    def full(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"engine.target.{step}", full)
        with pytest.raises(RequestError, match="ran out of memory; use fewer"):
            finished(ours, HELLO)
    assert finished(ours, HELLO).token_ids == expected


# Lengths and ends of answers


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 10])
@pytest.mark.parametrize("method", ["recap", "plain"])
def test_an_answer_is_cut_at_exactly_the_tokens_asked_for(
    zoo: Zoo, method: Any, max_tokens: int
) -> None:
    loaded = zoo.loaded("qwen2_5_vl", torch.float32, None)
    ours = session(loaded, method)
    for messages, answer in zip(
        conversations(True), zoo.answers("qwen2_5_vl", torch.float32, None), strict=True
    ):
        last = finished(ours, messages, max_tokens)
        assert last.token_ids == answer[:max_tokens]
        assert last.finish_reason == "length"


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_an_answer_ends_with_its_first_stop_token_wherever_a_pass_finds_it(
    zoo: Zoo, family: str, tmp_path: Path
) -> None:
    loaded = zoo.loaded(family, torch.float64, None)
    messages = conversations(loaded.family.vision)[-1]
    answer = zoo.answers(family, torch.float64, None)[-1]
    file = tmp_path / "warm.safetensors"
    for warm in range(2):
        for stop in answer:
            stopping = replace(loaded, stop_ids=frozenset({stop}))
            ours = session(stopping, memory_file=file if warm else None)
            last = finished(ours, messages)
            assert last.token_ids == answer[: answer.index(stop) + 1]
            assert last.finish_reason == "stop"
        with session(loaded, memory_file=file) as teacher:
            finished(teacher, messages)


@pytest.mark.parametrize("method", ["recap", "plain"])
def test_a_stop_string_cuts_tokens_text_and_figures(zoo: Zoo, method: Any, tmp_path: Path) -> None:
    loaded = zoo.loaded("qwen2_5_vl", torch.float32, None)
    messages = conversations(True)[3]
    ours = session(loaded, method, memory_file=tmp_path / "warm.safetensors")
    whole = finished(ours, messages)
    for start in range(len(whole.text) - 2):
        stop = whole.text[start : start + 3]
        *events, last = ours.generate(Request(messages, ANSWER, stop=(stop,)))
        assert isinstance(last, Finished)
        pieces = [event for event in events if isinstance(event, Committed)]
        assert last.finish_reason == "stop"
        assert last.text == whole.text[: whole.text.index(stop)]
        assert "".join(piece.text for piece in pieces) == last.text
        used = len(last.token_ids)
        assert (
            last.token_ids
            == whole.token_ids[:used]
            == [token for piece in pieces for token in piece.token_ids]
        )
        decode = loaded.encoder.tokenizer.decode
        assert stop in decode(last.token_ids, skip_special_tokens=True)
        if REPLACEMENT not in stop:  # half a character looks like that, too
            assert stop not in decode(last.token_ids[:-1], skip_special_tokens=True)
        assert last.stats.new_tokens == used
    assert finished(ours, messages).token_ids == whole.token_ids


def test_a_stop_string_that_never_comes_changes_nothing(zoo: Zoo) -> None:
    ours = session(zoo.loaded("llama", torch.float32, None))
    whole = finished(ours, HELLO)
    *_, last = ours.generate(Request(HELLO, ANSWER, stop=(whole.text[-3:] + "!",)))
    assert isinstance(last, Finished)
    assert (last.text, last.token_ids) == (whole.text, whole.token_ids)
    assert last.finish_reason == "length"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        Request(HELLO, stop=("",))


def test_without_a_limit_an_answer_gets_what_the_context_leaves(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    endless = replace(loaded, stop_ids=frozenset(), context_length=100)
    *_, last = session(endless).generate(Request(HELLO))
    assert isinstance(last, Finished)
    assert last.prompt_tokens + len(last.token_ids) == 100
    roomy = replace(endless, context_length=None)
    *_, last = session(roomy, "plain").generate(Request(HELLO))
    assert isinstance(last, Finished)
    assert len(last.token_ids) == DEFAULT_MAX_TOKENS


def test_a_request_that_the_context_cannot_hold_is_refused_with_the_counts(zoo: Zoo) -> None:
    loaded = replace(zoo.loaded("qwen2_5_vl", torch.float32, None), context_length=90)
    messages = (Message("user", "What?", (picture(113, 112),)),)
    encoded = loaded.encoder.encode(messages)
    text = encoded.input_ids.shape[1] - encoded.image_tokens
    counts = rf"{text} text \+ {encoded.image_tokens} image \+ 80 answer tokens .* 90"
    with pytest.raises(ContextError, match=counts):
        next(session(loaded).generate(Request(messages, 80)))


# Events


def test_events_come_in_order_and_add_up(zoo: Zoo) -> None:
    loaded = zoo.loaded("qwen2_5_vl", torch.float32, None)
    for messages in conversations(True):
        encoded, *committed, last = session(loaded).generate(Request(messages, ANSWER))
        assert isinstance(encoded, Encoded)
        assert isinstance(last, Finished)
        assert (encoded.prompt_tokens, encoded.image_tokens) == (
            last.prompt_tokens,
            last.image_tokens,
        )
        pieces = [event for event in committed if isinstance(event, Committed)]
        assert len(pieces) == len(committed)
        assert [token for piece in pieces for token in piece.token_ids] == last.token_ids
        assert "".join(piece.text for piece in pieces) == last.text
        tokenizer = loaded.encoder.tokenizer
        assert last.text == tokenizer.decode(last.token_ids, skip_special_tokens=True)
        stats = last.stats
        assert stats.new_tokens == len(last.token_ids) == 1 + stats.pass_tokens
        assert 0 < stats.prefill_s < stats.ttft_s


def test_time_before_the_request_counts_until_the_first_token(zoo: Zoo) -> None:
    ours = session(zoo.loaded("llama", torch.float32, None))
    *_, last = ours.generate(Request(HELLO, 2, elapsed_s=50.0))
    assert isinstance(last, Finished)
    assert 50.0 < last.stats.ttft_s < 60.0
    assert last.stats.decode_s < 10.0


def test_cancelling_gives_what_was_answered_so_far(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    expected = zoo.answers("llama", torch.float32, None)[1]
    ours, cancel = session(loaded, "plain"), threading.Event()
    seen: list[Event] = []
    for event in ours.generate(Request(conversations(False)[1], ANSWER), cancel):
        seen.append(event)
        if len(seen) == 4:
            cancel.set()
    last = seen[-1]
    assert isinstance(last, Finished)
    assert last.token_ids == expected[:3]
    assert last.finish_reason == "interrupt"
    assert finished(ours, conversations(False)[1]).token_ids == expected


def test_cancelled_before_it_began_a_request_gives_its_first_token(zoo: Zoo) -> None:
    cancel = threading.Event()
    cancel.set()
    ours = session(zoo.loaded("llama", torch.float32, None))
    *_, last = ours.generate(Request(HELLO, ANSWER), cancel)
    assert isinstance(last, Finished)
    assert (len(last.token_ids), last.finish_reason) == (1, "interrupt")


# The token memory's file


def header_of(path: Path) -> Any:
    stored = read_memory(path)
    assert stored is not None
    return stored[0]


def test_leaving_a_session_keeps_what_it_learned(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    with Session(loaded, SessionOptions()) as ours:
        finished(ours, HELLO)
        finished(ours, HELLO)
    path = memory_path(tokenizer_fingerprint(loaded.encoder.tokenizer.get_vocab()))
    header = header_of(path)
    assert header.requests == 2
    assert header.models == (loaded.name,)
    assert header.phrases > header.keys > ANSWER / 4
    before = path.read_bytes()
    with Session(loaded, SessionOptions()) as ours:
        assert ours.notices == []
    assert path.read_bytes() == before, "a session that answered nothing writes nothing"


def test_an_interrupted_answer_is_learned_from(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "memory.safetensors"
    ours = session(zoo.loaded("llama", torch.float32, None), memory_file=file)
    answer = ours.generate(Request(HELLO, ANSWER))
    for _ in range(6):
        next(answer)
    answer.close()
    assert ours.save_memory() == []
    assert header_of(file).requests == 1


def test_longer_keys_of_one_run_are_guessed_from_in_the_next(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "memory.safetensors"
    loaded = zoo.loaded("llama", torch.float32, None)
    with session(loaded, memory_file=file) as ours:
        first = finished(ours, HELLO)
    assert header_of(file).phrases > ANSWER
    unseeded = DrafterOptions(seeding=False, suffix=False)
    again = finished(session(loaded, memory_file=file, drafter=unseeded), HELLO)
    assert again.token_ids == first.token_ids
    assert again.stats.source_accepted["earlier-3"] > ANSWER / 4


def test_what_passes_cost_is_known_to_the_next_run(zoo: Zoo, tmp_path: Path) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    file = tmp_path / "warm.safetensors"

    def learned(asked: int) -> dict[str, Any]:
        with session(loaded, memory_file=file, drafter=DrafterOptions()) as ours:
            assert list(ours.prepare()) == []
            for _ in range(asked):
                finished(ours, HELLO)
            assert isinstance(ours._drafter, Recap)
            return ours._drafter.pace()

    first = learned(2)
    assert first["costs"]
    assert learned(0) == first


@pytest.mark.usefixtures("compiler")
def test_drafts_in_cpp_leave_the_same_files_as_drafts_in_python(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    fixed = DrafterOptions(nodes=15, adaptive=False)  # whatever the clock says
    tables = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr("engine.session.quickened", lambda drafter: drafter)
        file = tmp_path / f"{native}.safetensors"
        for _ in range(2):
            with session(loaded, memory_file=file, drafter=fixed) as ours:
                finished(ours, HELLO)
                assert isinstance(ours._drafter, NativeRecapDrafter) == native
        stored = read_memory(file)
        assert stored is not None
        tables.append([getattr(each, name) for each in stored[1] for name in each.DTYPES])
    assert all(np.array_equal(*pair) for pair in zip(*tables, strict=True))


def test_a_drafter_that_was_made_elsewhere_learns_and_leaves_the_session_s_own_alone(
    zoo: Zoo, tmp_path: Path
) -> None:
    file = tmp_path / "memory.safetensors"
    ours = session(zoo.loaded("llama", torch.float32, None), memory_file=file)
    guest = RecapDrafter(DrafterOptions(), TokenMemory(), frozenset())
    ours.draft_with(guest)
    finished(ours, HELLO)
    assert len(guest.memory) > 0
    assert ours.memory_use() == MemoryUse(0, 0, file)
    assert ours.save_memory() == []
    assert not file.exists()


def test_saving_twice_counts_once(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "memory.safetensors"
    with session(zoo.loaded("llama", torch.float32, None), memory_file=file) as ours:
        finished(ours, HELLO)
        assert ours.save_memory() == []
        before = file.read_bytes()
        assert ours.save_memory() == []
        assert file.read_bytes() == before
        finished(ours, HELLO)
    assert header_of(file).requests == 2


def test_it_says_how_much_it_has_learned_and_where_that_is_kept(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "memory.safetensors"
    ours = session(zoo.loaded("llama", torch.float32, None), memory_file=file)
    assert ours.memory_use() == MemoryUse(0, 0, file)
    finished(ours, HELLO)
    learned = ours.memory_use()
    assert learned.contextual_keys > learned.token_keys > 0
    plain = session(zoo.loaded("llama", torch.float32, None), "plain")
    finished(plain, HELLO)
    assert plain.memory_use() == MemoryUse(0, 0, None)


@pytest.mark.parametrize(
    ("method", "memory"), [("plain", True), ("recap", False)], ids=["plain", "no memory"]
)
def test_a_session_without_memory_touches_no_file(
    zoo: Zoo, method: Any, memory: bool, tmp_path: Path
) -> None:
    file = tmp_path / "memory.safetensors"
    file.write_bytes(b"not to be looked at")
    options = SessionOptions(method=method, memory=memory, memory_file=file)
    with Session(zoo.loaded("llama", torch.float32, None), options) as ours:
        finished(ours, HELLO)
        assert ours.notices == []
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert file.read_bytes() == b"not to be looked at"


def test_a_memory_that_cannot_be_used_is_a_notice_and_the_answer_comes(
    zoo: Zoo, tmp_path: Path
) -> None:
    file = tmp_path / "memory.safetensors"
    file.write_bytes(b"no memory at all")
    ours = session(zoo.loaded("llama", torch.float32, None), memory_file=file)
    assert ours.notices
    assert all(isinstance(notice, Notice) for notice in ours.notices)
    assert str(file) in ours.notices[0].message
    assert answers(ours, vision=False) == zoo.answers("llama", torch.float32, None)


def test_a_memory_that_cannot_be_written_is_a_notice(zoo: Zoo, tmp_path: Path) -> None:
    blocked = tmp_path / "a file, no folder"
    blocked.write_text("")
    ours = session(zoo.loaded("llama", torch.float32, None), memory_file=blocked / "memory")
    finished(ours, HELLO)
    (notice,) = ours.save_memory()
    assert "not kept" in notice.message


def test_logits_that_overflow_leave_a_memory_that_can_be_saved(zoo: Zoo, tmp_path: Path) -> None:
    loaded = zoo.load("llama")
    with torch.no_grad():
        loaded.model.get_output_embeddings().weight[5] = torch.nan
    file = tmp_path / "memory.safetensors"
    ours = session(loaded, memory_file=file)
    assert set(finished(ours, HELLO, 5).token_ids) == {5}
    assert ours.save_memory() == []


# Opening by name


def test_a_session_opens_a_folder_by_name(zoo: Zoo) -> None:
    folder = zoo.folder_of("llama", None)
    options = SessionOptions(str(folder), device="cpu", dtype="float32", memory=False)
    ours = Session.open(options)
    assert (ours.model_name, ours.device, ours.dtype) == (str(folder), "cpu", "float32")
    expected = zoo.answers("llama", torch.float32, None)
    assert answers(ours, vision=False) == expected


def finished_ids(only: Session, request: Request) -> Sequence[int]:
    *_, last = only.generate(request)
    assert isinstance(last, Finished)
    return last.token_ids


def test_an_answer_cannot_go_on_after_another_request_was_begun(zoo: Zoo) -> None:
    only = session(zoo.loaded("qwen2", torch.float32, None))
    request = Request([Message("user", "What is here?")], max_tokens=ANSWER)
    second = finished_ids(only, request)
    for kind, events in ((Encoded, 1), (Committed, 2)):
        first = only.generate(request)
        assert isinstance([next(first) for _ in range(events)][-1], kind)
        running = only.generate(request)
        begun = [next(running), next(running)]
        with pytest.raises(RequestError, match="another request was begun"):
            next(first)
        last = [*begun, *running][-1]
        assert isinstance(last, Finished)
        assert last.token_ids == second
