"""A run's records and memories on disk, while it goes on and after it was interrupted."""

import os
import pickle
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bench import journal as journals
from engine.bench.document import Header, read_document
from engine.bench.journal import Journal
from engine.drafters.registry import METHODS
from engine.errors import UsageError
from engine.memory.table import TransitionTable
from engine.memory.transitions import TokenMemory
from tests.engine.bench.documents import document, record
from tests.engine.memory.tables import phrases

RECORDS = [record("plain"), record("recap"), record("plain", "b")]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


def header(**settings: Any) -> Header:
    """The header of a run with these settings."""
    whole = document(*RECORDS)
    known: Any = {key: value for key, value in whole.items() if key != "records"}
    known["settings"] = {**known["settings"], **settings}
    found: Header = known
    return found


def interrupted(results: Path, records: int = 3, saved: int = 2) -> None:
    """A run that ended after so many records, the memories being those after `saved`."""
    journal = Journal(results)
    journal.begin(header())
    for number, each in enumerate(RECORDS[:records], start=1):
        journal.append(each, lambda: ({}, {}))
        if number == saved:
            journal.save(({}, {"recap": number}))


def test_what_is_finished_can_be_read_at_once(results: Path) -> None:
    interrupted(results)
    assert read_document(Journal(results).path)["records"] == RECORDS
    assert not results.exists()


def test_a_run_goes_on_where_its_memories_are_from(results: Path) -> None:
    interrupted(results, records=3, saved=2)
    journal = Journal(results)
    assert journal.there
    assert journal.resume(header()) == (RECORDS[:2], ({}, {"recap": 2}), 1)
    journal.append(RECORDS[2], lambda: ({}, {}))
    assert read_document(journal.path)["records"] == RECORDS


def test_without_memories_it_starts_anew(results: Path) -> None:
    interrupted(results, saved=0)
    assert Journal(results).resume(header()) == ([], ({}, {}), 3)


def test_memories_are_saved_from_time_to_time(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SAVE_EVERY_S", 0)
    journal = Journal(results)
    journal.begin(header())
    journal.append(RECORDS[0], lambda: ({}, {"recap": "one request"}))
    assert Journal(results).resume(header()).memories == ({}, {"recap": "one request"})


def test_the_time_at_which_it_began_stays(results: Path) -> None:
    interrupted(results)
    now = header(started="2030-01-01T00:00:00+00:00")
    Journal(results).resume(now)
    assert now["settings"]["started"] == header()["settings"]["started"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 64}, "is of a run with max tokens 128, not 64: repeat the command"),
        ({"dtype": "float32"}, "is of a run with dtype bfloat16, not float32"),
        ({"prompts": "0000000000000000"}, "is of a run with other prompts"),
    ],
)
def test_another_run_is_not_resumed(results: Path, settings: dict[str, Any], message: str) -> None:
    interrupted(results)
    with pytest.raises(UsageError, match=message):
        Journal(results).resume(header(**settings))
    assert read_document(Journal(results).path)["records"] == RECORDS, "nothing is lost"


def test_other_contenders_are_another_run(results: Path) -> None:
    interrupted(results)
    other = header()
    other["contenders"] = other["contenders"][:1]
    with pytest.raises(UsageError, match="is of a run with other contenders"):
        Journal(results).resume(other)


def test_nothing_is_left_of_a_run_that_is_over(results: Path) -> None:
    interrupted(results)
    Journal(results).delete()
    assert list(results.parent.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_s_memories_are_kept(results: Path, method: Any) -> None:
    table = TransitionTable(
        keys=np.array([1, 2], np.int32),
        next_ids=np.array([[2, 3], [3, 4]], np.int32),
        probs=np.array([[0.5, 0.25], [0.75, 0.125]], np.float32),
        uses=np.array([1, 1], np.uint32),
    )
    entry = METHODS[method]
    drafter = entry.make(entry.published, TokenMemory(table, phrases({(1, 2): 7})), frozenset({9}))
    drafter.start([1, 2, 3, 9, 1, 2, 3])
    drafter.observe([1, 2])
    journal = Journal(results)
    journal.begin(header())
    journal.save(({}, {method: drafter}))
    kept = journal.resume(header()).memories[1][method]
    assert kept.propose(4).tokens == drafter.propose(4).tokens


def test_containers_are_kept(results: Path) -> None:
    known = {"a": deque([range(3)]), "b": defaultdict(list), "c": OrderedDict(), "d": {1, 2}}
    journal = Journal(results)
    journal.begin(header())
    journal.save(({}, known))
    assert journal.resume(header()).memories[1] == known


def test_memories_are_written_as_every_python_reads_them(results: Path) -> None:
    interrupted(results)
    written = results.with_name("results.json.memories").read_bytes()
    assert written[:2] == pickle.PROTO + bytes([4])


class Harmful:
    """What a pickle of somebody else could hold."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps((0, Harmful()))])
def test_memories_that_are_no_drafters_are_refused(results: Path, content: bytes) -> None:
    interrupted(results)
    results.with_name("results.json.memories").write_bytes(content)
    with pytest.raises(UsageError, match=r"results\.json\.memories cannot be used .*delete it"):
        Journal(results).resume(header())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        Journal(tmp_path / "none" / "results.json").begin(header())
