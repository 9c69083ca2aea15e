"""The document: written, read, completed, and what is refused."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.bench.document import FORMAT, assemble, mark_differences, read_document, to_jsonl
from engine.bench.document import to_json as written
from engine.errors import UsageError
from tests.engine.bench.documents import document, failed, record


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


def test_what_is_written_is_read(file: Path) -> None:
    whole = document(record("plain"), record("recap", difference=(1, 0.5)), failed("suffix"))
    file.write_bytes(written(whole))
    assert read_document(file) == assemble(whole, whole["records"])


def test_a_document_may_have_been_laid_out_anew(file: Path) -> None:
    whole = document(record("plain"))
    file.write_text(json.dumps(whole, indent=2))
    assert read_document(file) == whole


def test_jsonl_is_a_record_a_line() -> None:
    whole = document(record("plain"), record("recap"))
    assert list(map(orjson.loads, to_jsonl(whole).splitlines())) == whole["records"]


def interrupted(file: Path, *lines: bytes) -> None:
    """A file as a run leaves it that is interrupted: the header, and these lines."""
    whole = document(record("plain"), record("recap"))
    header = {key: value for key, value in whole.items() if key != "records"}
    file.write_bytes(b"\n".join([orjson.dumps(header), *lines]))


def test_an_interrupted_run_is_read_as_far_as_it_came(file: Path) -> None:
    first, second = record("plain"), record("recap")
    interrupted(file, orjson.dumps(first), orjson.dumps(second), orjson.dumps(second)[:40])
    assert read_document(file)["records"] == [first, second]


def test_the_first_difference_is_found() -> None:
    plain, other = record("plain", commits=(1, 1, 1)), record("recap", commits=(1, 1, 1))
    shorter = record("racer", commits=(1, 1))
    other["token_ids"] = [0, 1, 7, 3]
    mark_differences([other, plain, shorter])
    assert plain["difference"] is None
    assert other["difference"] == {"position": 2, "gap": None}
    assert shorter["difference"] == {"position": 3, "gap": None}, "where the shorter one ends"


def test_answers_are_compared_with_the_plain_loop_s_first_to_the_same_prompt() -> None:
    plain, again = record("plain"), record("plain", repetition=1)
    again["token_ids"] = [5]
    elsewhere = record("recap", turn=1)
    broken = failed("suffix")
    mark_differences([plain, again, elsewhere, broken])
    assert again["difference"] == {"position": 0, "gap": None}
    assert elsewhere["difference"] is None
    assert broken["difference"] is None


def test_a_gap_that_was_measured_stays() -> None:
    other = record("recap", difference=(1, 0.25))
    mark_differences([record("plain"), other])
    assert other["difference"] == {"position": 1, "gap": 0.25}


def test_who_answered_nothing_failed() -> None:
    whole = document(
        record("plain"), failed("lookup", error="crash"), record("recap"), failed("recap", "b")
    )
    rows = assemble(whole, whole["records"])["contenders"]
    assert {row["name"]: row["failed"] for row in rows} == {
        "plain": None,
        "lookup": "crash",
        "recap": None,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no benchmark's document; name a file of --format json"),
        (b"hello", "is no benchmark's document; name a file of --format json"),
        (b"[1]", "is no benchmark's document; name a file of --format json"),
        (b'{"text": "an answer"}', "is no benchmark's document; name a file of --format json"),
        (b"\x89PNG\r\n", "is no benchmark's document; name a file of --format json"),
    ],
)
def test_other_files_are_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        read_document(file)
    assert str(refusal.value) == f"{file} {message}"


def test_a_newer_format_is_refused(file: Path) -> None:
    file.write_bytes(written({**document(), "format": FORMAT + 1}))
    with pytest.raises(UsageError, match="has format 2, and this recap reads 1; update it"):
        read_document(file)


def test_records_without_their_keys_are_refused(file: Path) -> None:
    whole = document(record("plain"))
    del whole["records"][0]["turn"]  # type: ignore[misc]
    file.write_bytes(written(whole))
    with pytest.raises(UsageError, match="records that lack keys"):
        read_document(file)


@pytest.mark.parametrize("records", [3, [3], [None]])
def test_records_that_are_none_are_refused(file: Path, records: Any) -> None:
    file.write_bytes(written({**document(), "records": records}))
    with pytest.raises(UsageError, match="records that lack keys"):
        read_document(file)


def test_a_missing_file_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file or directory"):
        read_document(file)
