"""A session's token memory and its file: trouble is a notice, and a file is never lost."""

import stat
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from engine.memory.file import read_memory
from engine.memory.format import METADATA_KEY
from engine.memory.keeper import MemoryKeeper
from engine.memory.transitions import THREE, TWO, ContextualMemory, Prediction, TokenMemory
from tests.engine.memory.tables import phrase_key, rows_of, write_version_1

VOCAB = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "memory.safetensors"


def keeper(path: Path, fingerprint: str = "abc", vocab_size: int = VOCAB) -> MemoryKeeper:
    return MemoryKeeper(path, fingerprint, "a/model", vocab_size)


def learned(*tokens: int, then: int = 7) -> TokenMemory:
    memory = TokenMemory()
    for token in tokens:
        memory.store(token, Prediction([then, then + 1], [0.75, 0.25], 0.5))
    return memory


def saved(path: Path, memory: TokenMemory) -> None:
    assert keeper(path).save(memory, 1) == []


def test_what_one_run_learns_the_next_one_knows(path: Path) -> None:
    saved(path, learned(3, 4))
    memory, lines = keeper(path).load()
    assert lines == []
    recalled = memory.recall(4)
    assert recalled is not None
    assert list(recalled.ids) == [7, 8]
    assert recalled.probs == pytest.approx([0.75, 0.25], rel=0.03)
    assert recalled.confidence == pytest.approx(1 - 0.8113, abs=0.03)
    assert memory.written() is None, "what was read is not to be written again"


def request(tokens: tuple[int, ...], then: int = 7) -> ContextualMemory:
    """What a request learned: these tokens, as a pair and as a triple, and what follows."""
    memory = ContextualMemory()
    after_two = Prediction([then, then + 1], [0.75, 0.25], 0.5)
    memory.pairs[phrase_key(*tokens[-2:]) & TWO] = after_two, 3
    after_three = Prediction([then, 1], [0.75, 0.25], 0.5)
    memory.triples[phrase_key(*tokens) & THREE] = after_three, 300
    return memory


def test_phrases_that_one_run_learns_the_next_one_knows(path: Path) -> None:
    memory = learned(3)
    memory.phrases.absorb(request((1, 2, 3)))
    saved(path, memory)
    again, _ = keeper(path).load()
    for key, longest in ((phrase_key(2, 3), 3), (phrase_key(1, 2, 3), 255)):
        recalled = again.phrases.recall(key)
        assert recalled is not None
        row, run = recalled
        assert (row.ids[0], run) == (7, longest)
    assert again.phrases.written() is None, "what was read is not to be written again"
    assert keeper(path).save(memory, 1) == [], "nothing came since"
    stored = read_memory(path)
    assert stored is not None
    assert (stored[0].phrases, stored[0].requests) == (2, 1)


def test_phrases_alone_are_saved_and_leave_the_tokens_as_they_were(path: Path) -> None:
    saved(path, learned(3, 4))
    memory = TokenMemory()
    memory.phrases.absorb(request((1, 2, 3)))
    saved(path, memory)
    again, _ = keeper(path).load()
    assert len(again) == len(again.phrases) == 2
    recalled = again.recall(3)
    assert recalled is not None
    assert list(recalled.ids) == [7, 8]


def test_phrases_with_ids_beyond_the_model_s_vocabulary_are_not_loaded(path: Path) -> None:
    memory = TokenMemory()
    memory.phrases.absorb(request((50, 2, 3)))
    memory.phrases.absorb(request((1, 4, 5), then=50))
    saved(path, memory)
    smaller, lines = keeper(path, vocab_size=50).load()
    assert lines == []
    assert smaller.phrases.recall(phrase_key(2, 3)) is not None
    assert len(smaller.phrases) == 1
    assert len(keeper(path).load()[0].phrases) == 4, "but they stay in the file"


def test_a_file_of_version_1_is_read_and_written_as_the_next(path: Path) -> None:
    path.parent.mkdir()
    write_version_1(path, "abc")
    memory, lines = keeper(path).load()
    assert (lines, len(memory), len(memory.phrases)) == ([], 1, 0)
    memory.store(4, Prediction([1, 2], [0.5, 0.5], 0.0))
    memory.phrases.absorb(request((1, 2, 3)))
    saved(path, memory)
    stored = read_memory(path)
    assert stored is not None
    header, _ = stored
    assert (header.format_version, header.keys, header.phrases) == (3, 3, 2)


def test_without_a_file_the_memory_is_empty_and_nothing_is_said(path: Path) -> None:
    memory, lines = keeper(path).load()
    assert (len(memory), lines) == (0, [])
    assert not path.parent.exists(), "reading leaves no trace"


def test_nothing_learned_is_nothing_written(path: Path) -> None:
    assert keeper(path).save(TokenMemory(), 1) == []
    assert not path.exists()


def test_a_second_save_counts_only_what_came_since(path: Path) -> None:
    memory = learned(3, 3)
    ours = keeper(path)
    assert ours.save(memory, 2) == []
    assert ours.save(memory, 0) == []
    memory.store(3, Prediction([9, 1], [0.5, 0.5], 0.0))
    assert ours.save(memory, 1) == []
    stored = read_memory(path)
    assert stored is not None
    header, tables = stored
    assert header.requests == 3
    found = {key: (ids, uses) for key, (ids, _, uses) in rows_of(tables.tokens).items()}
    assert found == {3: ([7, 9], 3)}


def test_ids_beyond_the_model_s_vocabulary_are_not_loaded(path: Path) -> None:
    memory = learned(3, 50)
    memory.store(4, Prediction([20, 50], [0.75, 0.25], 0.5))
    saved(path, memory)
    smaller, lines = keeper(path, vocab_size=50).load()
    assert lines == []
    assert smaller.recall(3) is not None
    assert smaller.recall(50) is None
    assert smaller.recall(4) is None
    saved(path, smaller)
    assert len(keeper(path).load()[0]) == 3, "but they stay in the file"


def test_a_corrupt_file_is_moved_aside_and_the_memory_begun_anew(path: Path) -> None:
    saved(path, learned(3))
    broken = path.read_bytes()[:-5]
    path.write_bytes(broken)
    memory, lines = keeper(path).load()
    assert len(memory) == 0
    assert "corrupt" in lines[0]
    assert "starting with an empty memory" in lines[0]
    (aside,) = path.parent.glob("*.corrupt-*")
    assert str(aside) in " ".join(lines)
    assert aside.read_bytes() == broken
    saved(path, learned(5))
    assert keeper(path).load()[0].recall(5) is not None


def newer(path: Path) -> None:
    with safe_open(path, "numpy") as container:
        header = orjson.loads(container.metadata()[METADATA_KEY])
    header["format_version"] = 99
    save_file(load_file(path), path, {METADATA_KEY: orjson.dumps(header).decode()})


def of_another_tokenizer(path: Path) -> None:
    path.unlink()
    assert keeper(path, fingerprint="other").save(learned(1), 1) == []


def no_memory(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (newer, "format version 99"),
        (of_another_tokenizer, "another tokenizer"),
        (no_memory, "no token memory"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_left_alone(
    path: Path, made: Callable[[Path], None], reason: str
) -> None:
    saved(path, learned(3))
    made(path)
    before = path.read_bytes()
    memory, lines = keeper(path).load()
    assert len(memory) == 0
    (line,) = lines
    assert reason in line
    assert str(path) in line
    memory.store(5, Prediction([1, 2], [0.5, 0.5], 0.0))
    (line,) = keeper(path).save(memory, 1)
    assert reason in line
    assert "not kept" in line
    assert path.read_bytes() == before
    assert [*path.parent.glob("memory*")] == [path]


def test_a_file_that_cannot_be_written_is_a_notice_and_can_be_tried_again(path: Path) -> None:
    memory = learned(3)
    path.mkdir(parents=True)
    (line,) = keeper(path).save(memory, 1)
    assert str(path) in line
    path.rmdir()
    saved(path, memory)
    assert keeper(path).load()[0].recall(3) is not None


def test_the_file_is_its_owner_s_alone(path: Path) -> None:
    saved(path, learned(3))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
