import multiprocessing
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from filelock import FileLock
from safetensors.numpy import save_file

from engine.errors import CorruptMemory, ForeignMemory, MemoryFileError
from engine.memory import file as memory_file
from engine.memory import table as table_module
from engine.memory.file import clear_memory, quarantine, read_memory, update_memory
from engine.memory.format import MemoryHeader
from engine.memory.table import Tables, TransitionTable
from tests.engine.memory.tables import (
    no_phrases,
    phrase_key,
    phrases,
    rows_of,
    table,
    write_version_1,
)

TOKENIZER = "0123456789abcdef"
FIRST = table({1: [(5, 1.0), (6, 0.5)], 2: [(7, 1.0), (8, 0.25)]})
SECOND = table({2: [(9, 1.0), (7, 0.5)], 3: [(1, 0.5), (2, 0.25)]}, uses=4)
BOTH = {
    1: ([5, 6], [1.0, 0.5], 1),
    2: ([9, 7], [1.0, 0.5], 5),
    3: ([1, 2], [0.5, 0.25], 4),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the folder of all memories."""
    monkeypatch.setenv("RECAP_MEMORY_DIR", str(tmp_path / "memory"))
    return tmp_path / "memory" / "vocabulary.safetensors"


def write(
    path: Path, new: TransitionTable | Tables, model: str = "demo", requests: int = 1
) -> MemoryHeader:
    new = new if isinstance(new, Tables) else no_phrases(new)
    return update_memory(path, TOKENIZER, model, new, requests)


def header_of(path: Path) -> MemoryHeader:
    stored = read_memory(path, TOKENIZER)
    assert stored is not None
    return stored[0]


def read(path: Path) -> Tables:
    stored = read_memory(path, TOKENIZER)
    assert stored is not None
    return stored[1]


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


# Reading and merging


def test_a_missing_file_is_no_memory(path: Path) -> None:
    assert read_memory(path, TOKENIZER) is None
    assert not path.parent.exists()


def test_a_first_run_begins_the_file(path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    header = write(path, FIRST, requests=3)

    assert header_of(path) == header
    assert rows_of(read(path).tokens) == rows_of(FIRST)
    assert header.tokenizer == TOKENIZER
    assert header.models == ("demo",)
    assert (header.k, header.keys, header.requests) == (2, 2, 3)
    assert header.first_used == header.last_used
    assert before <= datetime.fromisoformat(header.last_used) <= datetime.now(UTC)


def test_a_later_runs_rows_win_and_uses_add_up(path: Path) -> None:
    first = write(path, FIRST, requests=3)
    header = write(path, SECOND, requests=2)

    assert rows_of(read(path).tokens) == BOTH
    assert (header.keys, header.requests) == (3, 5)
    assert header.first_used == first.first_used


def test_every_model_that_wrote_is_listed_once(path: Path) -> None:
    for model in ("b", "a", "b"):
        write(path, FIRST, model=model)
    assert header_of(path).models == ("b", "a")


def test_a_model_folder_whose_name_is_no_unicode_is_listed_all_the_same(path: Path) -> None:
    write(path, FIRST, model=os.fsdecode(b"/models/\xff"))
    assert header_of(path).models == ("/models/?",)


def test_a_run_that_learned_nothing_counts_its_requests(path: Path) -> None:
    write(path, TransitionTable.empty(2))
    write(path, FIRST)
    header = write(path, TransitionTable.empty(2))

    assert header.requests == 3
    assert rows_of(read(path).tokens) == rows_of(FIRST)


def test_the_file_takes_the_k_of_the_last_run(path: Path) -> None:
    write(path, FIRST)
    header = write(path, table({2: [(9, 0.5)]}))

    assert header.k == 1
    assert rows_of(read(path).tokens) == {1: ([5], [1.0], 1), 2: ([9], [0.5], 2)}


def test_uses_stop_counting_at_what_the_file_can_hold(path: Path) -> None:
    often = TransitionTable(FIRST.keys, FIRST.next_ids, FIRST.probs, np.full(2, 60_000, np.uint32))
    write(path, often)
    write(path, often)
    assert read(path).tokens.uses.tolist() == [65_535, 65_535]


def test_phrases_are_kept_beside_the_tokens_and_a_later_runs_win(path: Path) -> None:
    write(path, Tables(FIRST, phrases({(1, 2): 5, (1, 2, 3): 6})))
    header = write(path, Tables(SECOND, phrases({(1, 2): 7, (2, 3): 8})))

    assert (header.keys, header.phrases) == (3, 3)
    assert header_of(path) == header
    assert rows_of(read(path).tokens) == BOTH
    found = {key: ids[0] for key, (ids, _, _) in rows_of(read(path).phrases).items()}
    assert found == {phrase_key(1, 2): 7, phrase_key(2, 3): 8, phrase_key(1, 2, 3): 6}


def test_of_too_many_phrases_those_go_that_no_run_wrote_for_longest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "PHRASES_MOST", 3)
    for token in (1, 2, 3, 1, 4):
        write(path, Tables(FIRST, phrases({(token, token): 9})))

    assert header_of(path).phrases == 3
    assert rows_of(read(path).phrases).keys() == {phrase_key(token, token) for token in (1, 3, 4)}


def test_a_file_of_version_1_is_read_and_becomes_one_of_this_version(path: Path) -> None:
    path.parent.mkdir()
    old = write_version_1(path, TOKENIZER)
    assert rows_of(read(path).tokens) == old

    header = write(path, Tables(table({4: [(5, 1.0), (6, 0.5)]}), phrases({(1, 2): 3})))

    assert (header.format_version, header.requests, header.models) == (3, 6, ("old", "demo"))
    assert header_of(path) == header
    assert rows_of(read(path).tokens) == old | {4: ([5, 6], [1.0, 0.5], 1)}
    assert rows_of(read(path).phrases).keys() == {phrase_key(1, 2)}


@pytest.mark.parametrize("content", [b"a letter", b"\x89PNG\r\n" * 99, b"\xff" * 9000])
def test_what_never_was_a_token_memory_is_neither_moved_nor_deleted(
    tmp_path: Path, content: bytes
) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(content)
    with pytest.raises(ForeignMemory, match="is no token memory; name another file"):
        read_memory(other)
    with pytest.raises(ForeignMemory, match="is no token memory; name another file"):
        clear_memory(other)
    assert quarantine(other) is None
    assert other.read_bytes() == content


def test_a_damaged_memory_is_one_wherever_it_is(path: Path, tmp_path: Path) -> None:
    write(path, FIRST)
    elsewhere = tmp_path / "elsewhere.memory"
    for damaged in (b"", path.read_bytes()[:-5]):
        elsewhere.write_bytes(damaged)
        with pytest.raises(CorruptMemory):
            read_memory(elsewhere)
        assert quarantine(elsewhere) is not None
    elsewhere.write_bytes(path.read_bytes()[:-5])
    assert clear_memory(elsewhere)
    assert not elsewhere.exists()


def test_a_link_to_a_memory_stays_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    write(path, FIRST)
    link.symlink_to(path)
    header = write(link, SECOND)
    assert link.is_symlink()
    assert header_of(path) == header


# Only for its owner


def test_the_file_and_its_new_folders_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "recap" / "memory.safetensors"
    write(path, FIRST)
    path.chmod(0o644)
    write(path, SECOND)

    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# Nothing is ever half written


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


STEPS = ["os.fdopen", "os.fsync", "os.replace", "engine.memory.file.pack"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("failure", "error"), [(no_space, MemoryFileError), (interrupt, KeyboardInterrupt)]
)
def test_a_write_that_fails_at_any_step_leaves_the_old_file(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    failure: Callable[..., Any],
    error: type[BaseException],
) -> None:
    write(path, FIRST)
    old = path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(step, failure)
        with pytest.raises(error):
            write(path, SECOND)

    assert path.read_bytes() == old
    assert names_in(path.parent) == {path.name, f".{path.name}.lock"}
    write(path, SECOND)
    assert rows_of(read(path).tokens) == BOTH


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let the operating system refuse to make any file longer than `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1, 500])
def test_a_file_that_cannot_grow_is_an_error_and_leaves_the_old_one(path: Path, size: int) -> None:
    write(path, FIRST)
    old = path.read_bytes()

    with room_for(size), pytest.raises(MemoryFileError, match="cannot write the token memory"):
        write(path, SECOND)

    assert path.read_bytes() == old
    assert names_in(path.parent) == {path.name, f".{path.name}.lock"}


def test_a_folder_that_cannot_be_synced_is_no_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    write(path, FIRST)
    assert rows_of(read(path).tokens) == rows_of(FIRST)


def die_while_writing(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: os._exit(9))
        write(path, SECOND)


def test_a_killed_writer_leaves_the_old_file_and_blocks_nobody(path: Path) -> None:
    write(path, FIRST)
    old = path.read_bytes()

    process = multiprocessing.get_context("spawn").Process(target=die_while_writing, args=(path,))
    process.start()
    process.join(60)

    assert process.exitcode == 9
    assert path.read_bytes() == old
    write(path, SECOND)
    assert rows_of(read(path).tokens) == BOTH
    assert names_in(path.parent) == {path.name, f".{path.name}.lock"}


# Several processes

WRITES = 15


def write_often(path: Path, own: int) -> None:
    for turn in range(WRITES):
        rows = {0: [(own, 0.5)], own + turn: [(turn, 0.5)]}
        write(path, table(rows), f"model-{own}")


def test_two_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    owners = (100, 200)
    writers = [spawn.Process(target=write_often, args=(path, own)) for own in owners]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        read_memory(path, TOKENIZER)  # a reader needs no lock and never meets half a file
        writers[0].join(0.01)
    assert [writer.exitcode for writer in writers] == [0, 0]

    header, rows = header_of(path), rows_of(read(path).tokens)
    assert set(rows) == {0} | {own + turn for own in owners for turn in range(WRITES)}
    assert rows[0][2] == header.requests == 2 * WRITES
    assert set(header.models) == {"model-100", "model-200"}


def test_a_file_that_another_process_holds_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_file, "LOCK_TIMEOUT_S", 0.05)
    write(path, FIRST)
    with FileLock(path.with_name(f".{path.name}.lock")):
        for change in (lambda: write(path, SECOND), lambda: clear_memory(path)):
            with pytest.raises(MemoryFileError, match="another process has held it"):
                change()
        assert rows_of(read(path).tokens) == rows_of(FIRST)


# Files that do not fit


def test_another_tokenizers_file_is_neither_used_nor_changed(path: Path) -> None:
    write(path, FIRST)
    old = path.read_bytes()

    with pytest.raises(ForeignMemory, match=f"another tokenizer \\({TOKENIZER}"):
        read_memory(path, "another")
    with pytest.raises(ForeignMemory):
        update_memory(path, "another", "demo", no_phrases(SECOND), 1)

    assert path.read_bytes() == old
    assert read_memory(path) is not None


def test_a_newer_versions_file_is_neither_used_nor_moved_nor_changed(path: Path) -> None:
    path.parent.mkdir()
    header = orjson.dumps({"format_version": 4}).decode()
    save_file({"novel": np.zeros(2, np.uint8)}, path, {"recap_memory": header})
    old = path.read_bytes()

    with pytest.raises(ForeignMemory, match="upgrade"):
        read_memory(path, TOKENIZER)
    with pytest.raises(ForeignMemory):
        write(path, SECOND)

    assert quarantine(path) is None
    assert path.read_bytes() == old


def test_a_corrupt_file_is_not_overwritten_until_it_is_moved_aside(path: Path) -> None:
    write(path, FIRST)
    path.write_bytes(path.read_bytes()[:-1])
    broken = path.read_bytes()

    with pytest.raises(CorruptMemory):
        write(path, SECOND)
    assert path.read_bytes() == broken

    aside = quarantine(path)
    assert aside is not None
    assert aside.name.startswith(f"{path.name}.corrupt-2")
    assert aside.read_bytes() == broken
    assert read_memory(path) is None


def test_a_sound_file_is_not_moved_aside(path: Path) -> None:
    write(path, FIRST)
    assert quarantine(path) is None
    assert rows_of(read(path).tokens) == rows_of(FIRST)


def test_copies_moved_aside_never_replace_each_other(path: Path) -> None:
    path.parent.mkdir()
    for content in (b"one", b"two"):
        path.write_bytes(content)
        quarantine(path)
    kept = {file.read_bytes() for file in path.parent.glob("*.corrupt-*")}
    assert kept == {b"one", b"two"}


@pytest.mark.parametrize("use", [read_memory, quarantine, clear_memory, lambda p: write(p, FIRST)])
def test_a_folder_in_the_files_place_is_left_alone(
    tmp_path: Path, use: Callable[[Path], object]
) -> None:
    with pytest.raises(MemoryFileError, match="not a regular file"):
        use(tmp_path)
    assert names_in(tmp_path) == set()


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(MemoryFileError, match="/dev/null is not a regular file"):
        write(Path("/dev/null"), FIRST)


def test_a_path_through_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    path = tmp_path / "notes" / "memory.safetensors"
    for use in (lambda: read_memory(path), lambda: write(path, FIRST)):
        with pytest.raises(MemoryFileError, match="Not a directory"):
            use()


as_a_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write anything")


@as_a_user
def test_a_folder_without_write_permission_is_an_error(path: Path) -> None:
    write(path, FIRST)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(MemoryFileError, match="Permission denied"):
            write(path, SECOND)
    finally:
        path.parent.chmod(0o700)
    assert rows_of(read(path).tokens) == rows_of(FIRST)


@as_a_user
def test_a_folder_without_any_permission_is_an_error(path: Path) -> None:
    write(path, FIRST)
    path.parent.chmod(0)
    try:
        for use in (read, clear_memory, quarantine):
            with pytest.raises(MemoryFileError, match="Permission denied"):
                use(path)
    finally:
        path.parent.chmod(0o700)


def deny_open(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Make a file unreadable, also to root: safetensors then reports it as missing."""
    path.chmod(0)
    if os.geteuid() == 0:

        def denied(*_: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", denied)


def test_a_file_that_may_not_be_read_is_no_missing_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, FIRST)
    old = path.read_bytes()
    with monkeypatch.context() as patch:
        deny_open(patch, path)
        for use in (read, quarantine, lambda p: write(p, SECOND)):
            with pytest.raises(MemoryFileError, match="Permission denied"):
                use(path)
    path.chmod(0o600)
    assert path.read_bytes() == old


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_a_read_only_file_system_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    if call == "open":
        path.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(MemoryFileError, match="Read-only file system"):
            write(path, FIRST)
    assert read_memory(path) is None


# Clearing


def test_clearing_deletes_the_file_its_leftovers_and_nothing_else(path: Path) -> None:
    write(path, FIRST)
    path.write_bytes(b"broken")
    quarantine(path)
    write(path, FIRST)
    (path.parent / f".{path.name}.tmp").touch()
    (path.parent / "other.safetensors").touch()

    assert clear_memory(path) is True
    assert names_in(path.parent) == {f".{path.name}.lock", "other.safetensors"}
    assert clear_memory(path) is False


def test_clearing_needs_no_readable_content(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff" * 100)
    assert clear_memory(path) is True
    assert not path.exists()


def test_clearing_what_never_was_makes_nothing(path: Path) -> None:
    assert clear_memory(path) is False
    assert not path.parent.exists()
