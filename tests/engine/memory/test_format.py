import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from safetensors import safe_open
from safetensors.numpy import save_file

from engine.errors import CorruptMemory, ForeignMemory, MemoryFileError
from engine.memory.format import MemoryHeader, load, pack
from engine.memory.table import (
    NO_NEXT,
    PAIR,
    PHRASE_K,
    PHRASES_MOST,
    PhraseTable,
    Tables,
    TransitionTable,
)
from tests.engine.memory.tables import (
    no_phrases,
    phrase_tables,
    phrases,
    rows_of,
    runs_of,
    table,
    tables,
    write_version_1,
    write_version_2,
)

Columns = dict[str, np.ndarray]
FEW = Tables(
    table({3: [(5, 0.5), (6, 0.25)], 70_000: [(7, 0.75), (8, 0.125)]}),
    phrases({(3, 5): 7, (9, 3, 5): 8}),
)
MOMENT = "2026-01-02T03:04:05+00:00"


def header_of(stored: Tables) -> MemoryHeader:
    k, n, m = stored.tokens.k, len(stored.tokens.keys), len(stored.phrases.keys)
    return MemoryHeader(3, "0123456789abcdef", ("demo",), k, n, m, MOMENT, MOMENT, 7)


def packed(path: Path, stored: Tables) -> Path:
    path.write_bytes(pack(header_of(stored), stored))
    return path


Rows = tuple[dict[int, Any], dict[int, Any]]


def rows_in(path: Path) -> Rows:
    stored = load(path)[1]
    return rows_of(stored.tokens), rows_of(stored.phrases)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("format") / "memory.safetensors"


@settings(deadline=None)
@given(tokens=tables(), longer=phrase_tables())
def test_what_is_packed_comes_back(
    scratch: Path, tokens: TransitionTable, longer: PhraseTable
) -> None:
    stored = Tables(tokens, longer)
    header, read = load(packed(scratch, stored))

    assert header == header_of(stored)
    for ours, theirs in zip(stored, read, strict=True):
        np.testing.assert_array_equal(theirs.keys, ours.keys)
        np.testing.assert_array_equal(theirs.next_ids, ours.next_ids)
        wanted = np.where(ours.next_ids == NO_NEXT, 0, np.maximum(ours.probs, 2**-15.875))
        np.testing.assert_allclose(theirs.probs, wanted, rtol=0.022)
    np.testing.assert_array_equal(read.tokens.uses, np.minimum(tokens.uses, 65535))
    np.testing.assert_array_equal(read.phrases.stamps, longer.stamps)
    np.testing.assert_array_equal(read.phrases.runs, longer.runs)


def test_every_code_of_a_probability_survives_being_written_again(scratch: Path) -> None:
    codes = np.arange(255, 0, -1, dtype=np.float32)
    rows = enumerate(np.split(2 ** ((codes - 255) / 16), 5))
    exact = table({key: list(enumerate(row)) for key, row in rows})

    once = load(packed(scratch, no_phrases(exact)))[1].tokens
    twice = load(packed(scratch, no_phrases(once)))[1].tokens

    assert len(np.unique(once.probs)) == 255
    assert once.probs[0, 0] == 1
    np.testing.assert_array_equal(once.probs, twice.probs)


@pytest.mark.parametrize(("max_id", "row"), [(65_535, 28), (151_935, 46)])
def test_a_row_of_eight_next_tokens_takes_at_most_fifty_bytes(
    scratch: Path, max_id: int, row: int
) -> None:
    n = 4000
    ids = np.arange(max_id - n + 1, max_id + 1, dtype=np.int32)
    full = TransitionTable(
        keys=ids,
        next_ids=np.repeat(ids[:, None], 8, axis=1),
        probs=np.full((n, 8), 0.125, np.float32),
        uses=np.ones(n, np.uint32),
    )

    size = packed(scratch, no_phrases(full)).stat().st_size

    assert row * n < size < row * n + 1000


@pytest.mark.parametrize(("greatest", "row"), [(65_535, 23), (70_000, 33)])
def test_as_many_phrases_as_are_kept_take_a_few_megabytes(
    scratch: Path, greatest: int, row: int
) -> None:
    n = PHRASES_MOST
    full = PhraseTable(
        keys=np.uint64(PAIR) + np.arange(n, dtype=np.uint64),
        next_ids=np.full((n, PHRASE_K), greatest, np.int32),
        probs=np.full((n, PHRASE_K), 0.25, np.float32),
        stamps=np.full(n, greatest, np.uint32),
        runs=np.ones(n, np.uint8),
    )

    size = packed(scratch, Tables(TransitionTable.empty(8), full)).stat().st_size

    assert row * n < size < row * n + 2000


def test_a_file_cut_short_anywhere_is_corrupt(scratch: Path) -> None:
    whole = packed(scratch, FEW).read_bytes()
    for length in range(len(whole)):
        scratch.write_bytes(whole[:length])
        with pytest.raises(CorruptMemory, match=r"memory\.safetensors is corrupt"):
            load(scratch)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\3\4" * 99, b"\xff" * 99])
def test_any_other_content_is_corrupt(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    with pytest.raises(CorruptMemory):
        load(scratch)


@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_a_changed_byte_never_changes_the_transitions_unseen(scratch: Path, flip: int) -> None:
    whole = packed(scratch, FEW).read_bytes()
    sound = rows_in(scratch)
    refused = 0
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= flip
        scratch.write_bytes(changed)
        try:
            assert rows_in(scratch) == sound
        except MemoryFileError:
            refused += 1
    assert refused > len(whole) / 2


TENSORS = (
    *("keys", "next_ids", "probs", "uses"),
    *("phrase_keys", "phrase_next_ids", "phrase_probs", "phrase_stamps", "phrase_runs"),
)


def parts(path: Path) -> tuple[Columns, dict[str, Any]]:
    """The tensors and the header of a sound file, to forge others from."""
    with safe_open(packed(path, FEW), framework="numpy") as container:
        columns = {name: container.get_tensor(name).copy() for name in container.keys()}  # noqa: SIM118
        return columns, orjson.loads(container.metadata()["recap_memory"])


def forge(path: Path, columns: Columns, header: Any) -> None:
    """Write a file whose checksum is right, whatever else is wrong."""
    if isinstance(header, dict) and "checksum" in header:
        named = [columns[name] for name in TENSORS if name in columns]
        header["checksum"] = zlib.crc32(b"".join(column.tobytes() for column in named))
    save_file(columns, path, {"recap_memory": orjson.dumps(header).decode()})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"uses": None}, id="a column missing"),
        pytest.param({"more": np.zeros(1, np.uint8)}, id="a column too many"),
        pytest.param({"uses": np.ones(2, np.float32)}, id="wrong type"),
        pytest.param({"uses": np.ones(3, np.uint16)}, id="wrong length"),
        pytest.param({"uses": np.ones((2, 1), np.uint16)}, id="wrong rank"),
        pytest.param({"probs": np.ones((2, 3), np.uint8)}, id="another k"),
        pytest.param({"keys": np.array([9, 3], np.uint32)}, id="keys fall"),
        pytest.param({"keys": np.array([3, 3], np.uint32)}, id="a key twice"),
        pytest.param({"keys": np.array([3, 2**31], np.uint32)}, id="a key too large"),
        pytest.param({"next_ids": np.full((2, 2), 2**32 - 1, np.uint32)}, id="an id too large"),
        pytest.param({"probs": np.array([[1, 2], [2, 1]], np.uint8)}, id="probabilities rise"),
        pytest.param({"phrase_keys": None}, id="phrases without keys"),
        pytest.param({"phrase_keys": np.array([1, 2], np.uint64)}, id="phrases without tags"),
        pytest.param({"phrase_keys": np.array([1, 2], np.uint32)}, id="keys of another type"),
        pytest.param({"phrase_probs": np.ones((2, 3), np.uint8)}, id="phrases of another k"),
        pytest.param({"phrase_stamps": np.ones(1, np.uint16)}, id="too few stamps"),
        pytest.param({"phrase_runs": None}, id="phrases without runs"),
    ],
)
def test_columns_that_are_not_as_documented_are_corrupt(
    scratch: Path, change: dict[str, np.ndarray | None]
) -> None:
    columns, header = parts(scratch)
    changed = {name: column for name, column in (columns | change).items() if column is not None}
    forge(scratch, changed, header)
    with pytest.raises(CorruptMemory):
        load(scratch)


@pytest.mark.parametrize(
    "change",
    [
        {"k": 3},
        {"k": 2.0},
        {"k": 65},
        {"keys": 3},
        {"phrases": 3},
        {"format_version": 1},
        {"requests": -1},
        {"requests": True},
        {"format_version": 0},
        {"format_version": "1"},
        {"tokenizer": None},
        {"models": "demo"},
        {"models": [1]},
        {"first_used": "yesterday"},
        {"first_used": "2026-01-02T03:04:05"},
        {"last_used": 5},
        {"unheard_of": 1},
    ],
    ids=str,
)
def test_a_header_that_is_not_as_documented_is_corrupt(
    scratch: Path, change: dict[str, Any]
) -> None:
    columns, header = parts(scratch)
    forge(scratch, columns, header | change)
    with pytest.raises(CorruptMemory):
        load(scratch)


@pytest.mark.parametrize("field", [*(field.name for field in fields(MemoryHeader)), "checksum"])
def test_every_field_of_the_header_is_needed(scratch: Path, field: str) -> None:
    columns, header = parts(scratch)
    del header[field]
    forge(scratch, columns, header)
    with pytest.raises(CorruptMemory):
        load(scratch)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"format_version": 1}'])
def test_a_header_that_is_no_object_is_corrupt(scratch: Path, text: str) -> None:
    columns, _ = parts(scratch)
    save_file(columns, scratch, {"recap_memory": text})
    with pytest.raises(CorruptMemory):
        load(scratch)


def test_the_forged_files_above_are_bad_only_where_they_were_changed(scratch: Path) -> None:
    forge(scratch, *parts(scratch))
    forged = rows_in(scratch)
    assert forged == rows_in(packed(scratch, FEW))


def test_a_file_of_version_1_is_one_without_phrases(scratch: Path) -> None:
    stored = write_version_1(scratch, "0123456789abcdef")

    header, read = load(scratch)

    assert header == MemoryHeader(1, "0123456789abcdef", ("old",), 2, 2, 0, MOMENT, MOMENT, 5)
    assert rows_of(read.tokens) == stored
    assert rows_of(read.phrases) == {}


def test_a_file_of_version_1_with_phrases_is_corrupt(scratch: Path) -> None:
    columns, header = parts(scratch)
    older = {name: columns[name] for name in TENSORS[:4]}
    forge(scratch, older, header | {"format_version": 1})
    with pytest.raises(CorruptMemory, match="header"):
        load(scratch)


def test_phrases_of_a_file_of_version_2_have_runs_of_one(scratch: Path) -> None:
    stored = write_version_2(scratch, "0123456789abcdef")
    read = load(scratch)[1].phrases
    assert rows_of(read) == stored
    assert runs_of(read) == dict.fromkeys(stored, 1)


def test_a_newer_version_is_foreign_whatever_else_changed(scratch: Path) -> None:
    forge(scratch, {"other": np.zeros(3, np.uint8)}, {"format_version": 4, "novel": []})
    with pytest.raises(ForeignMemory, match="format version 4"):
        load(scratch)


def test_a_models_weights_are_foreign_not_corrupt(scratch: Path) -> None:
    save_file({"weight": np.zeros((2, 2), np.float32)}, scratch)
    with pytest.raises(ForeignMemory, match="no token memory"):
        load(scratch)
