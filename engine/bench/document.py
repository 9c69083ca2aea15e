"""The JSON document of a benchmark: what was run where, and one record a request.

Every table can be made anew from it. Writes, reads and completes it; measures nothing.
"""

from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import orjson

from engine.errors import UsageError

FORMAT = 1
"""Version of the document; a reader refuses any other."""

PLAIN, CONTROL, GENERATE = "plain", "plain-control", "transformers"
"""Contenders that are compared with: our loop with empty trees; the same once more, which shows
what is noise; and transformers' `generate()`."""

StartedFrom = Literal["cold", "warm", "file", "none"]
"""What a contender knew when a repetition began: nothing, the prompts themselves from a pass that
was not recorded, or a memory's file; or it remembers nothing from one request to the next."""


class Machine(TypedDict):
    """Where it ran; `threads` are torch's, `gpu` is null where none was used."""

    cpu: str
    cores: int
    threads: int
    memory_bytes: int | None
    platform: str
    gpu: str | None


class Settings(TypedDict):
    """What all contenders had in common.

    `started` is an ISO 8601 time; `compile` and `operators` say whether our loop's passes are
    compiled, or use operators in C++ uncompiled; transformers' own never do. `memory_start` is
    `cold`, `warm` or a file's path. `prompts` tells workloads of the same description apart: a
    fingerprint of all texts and picture sources.
    `peak_memory` says what the records' `peak_memory_bytes` is a peak of: the one request, or the
    process since it started.
    """

    model: str
    device: str
    dtype: str
    compile: bool
    operators: bool
    max_tokens: int
    repetitions: int
    warmup: int
    memory_start: str
    workload: str
    prompts: str
    turns: Literal["first", "all"]
    peak_memory: Literal["request", "process"]
    started: str


class ContenderRow(TypedDict):
    """A contender. `options` are those that are not `DrafterOptions`' defaults.

    `method` is one of the registry's, `transformers` or `transformers-lookup`; `failed` says why a
    contender answered nothing at all.
    """

    name: str
    method: str
    options: dict[str, Any]
    memory: StartedFrom
    failed: str | None


class TaskRow(TypedDict):
    """A task by its id; `turns` is their number."""

    id: str
    category: str
    turns: int


class Difference(TypedDict):
    """Where an answer first leaves that of `plain` in the first repetition.

    `position` counts tokens of the answer from 0. `gap` is the logit of plain's token minus that of
    the other token in plain's own decoding; null where it was not measured, or where one answer is
    the beginning of the other.
    """

    position: int
    gap: float | None


class Record(TypedDict):
    """One request: a contender, a task, a turn (from 0), a repetition (from 0).

    Times are in seconds; `total_s` is the whole request, opening and encoding pictures included.
    `committed` holds the tokens that each verify pass committed, in order; the first token comes
    from the prefill, so that they sum to one less than `token_ids`. All that follow `difference`
    are `DecodeStats.measures()`. What a request that failed does not have is null, and so is what
    cannot be seen of a contender outside our loop. `pieces`, the text of each token, is there for
    the demo model only: its attribute words are known, see `attributes`.
    """

    contender: str
    task: str
    category: str
    turn: int
    repetition: int
    error: str | None
    token_ids: list[int] | None
    finish_reason: str | None
    prompt_tokens: int | None
    image_tokens: int | None
    total_s: float | None
    peak_memory_bytes: int | None
    peak_gpu_memory_bytes: int | None
    committed: list[int] | None
    difference: Difference | None
    new_tokens: int | None
    passes: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: dict[str, int] | None
    acceptance_by_depth: list[float] | None
    passes_by_depth: list[int] | None
    sources: dict[str, dict[str, int]] | None
    ttft_s: float | None
    encode_s: float | None
    prefill_s: float | None
    seed_s: float | None
    decode_s: float | None
    decode_tokens_per_s: float | None
    ms_per_pass: float | None
    draft_ms_per_pass: float | None
    pieces: NotRequired[list[str]]


class Header(TypedDict):
    """All of a benchmark that is known before its first request."""

    format: int
    machine: Machine
    versions: dict[str, str | None]
    settings: Settings
    contenders: list[ContenderRow]
    tasks: list[TaskRow]


class Document(Header):
    """A whole benchmark."""

    records: list[Record]


def assemble(header: Header, records: list[Record]) -> Document:
    """The document of these records, with what only all of them together tell.

    A contender failed if all its requests did. Differences are found, where they were not before.
    """
    mark_differences(records)
    rows: list[ContenderRow] = []
    for row in header["contenders"]:
        errors = [each["error"] for each in records if each["contender"] == row["name"]]
        failed = errors[0] if errors and all(errors) else None
        rows.append({**row, "failed": failed})
    return {**header, "contenders": rows, "records": records}


def mark_differences(records: list[Record]) -> None:
    """Set `difference` of every answer that is not the plain loop's, if that is not done yet."""
    plain = {
        (record["task"], record["turn"]): record["token_ids"]
        for record in records
        if record["contender"] == PLAIN and record["repetition"] == 0
    }
    for record in records:
        expected = plain.get((record["task"], record["turn"]))
        found = record["token_ids"]
        if expected is None or found is None or expected == found or record["difference"]:
            continue
        pairs = enumerate(zip(expected, found, strict=False))
        shorter = min(len(expected), len(found))
        position = next((i for i, (one, other) in pairs if one != other), shorter)
        record["difference"] = {"position": position, "gap": None}


def to_json(document: Document) -> bytes:
    """The document as one JSON object and a newline."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def to_jsonl(document: Document) -> bytes:
    """Its records, one JSON object a line."""
    return b"".join(
        orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in document["records"]
    )


def read_document(path: Path) -> Document:
    """Read what `to_json` wrote, or what there is of a run that was interrupted.

    Of such a run there is the header on one line and a record on each other; a last line that is
    cut short does not count.

    Raises:
        UsageError: it cannot be read, or is no such document.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    first, *rest = data.splitlines() or [b""]
    found: Any = _parsed(data) or _parsed(first)
    if not isinstance(found, dict) or Header.__required_keys__ - found.keys():
        raise UsageError(f"{path} is no benchmark's document; name a file of --format json")
    if found["format"] != FORMAT:
        raise UsageError(
            f"{path} has format {found['format']}, and this recap reads {FORMAT}; update it"
        )
    records = found.pop("records", None)
    if records is None:
        records = list(takewhile(bool, map(_parsed, rest)))
    if not isinstance(records, list) or not all(map(_is_record, records)):
        raise UsageError(f"{path} has records that lack keys; measure again")
    return assemble(found, records)  # type: ignore[arg-type]


def _is_record(found: Any) -> bool:
    return isinstance(found, dict) and found.keys() >= Record.__required_keys__


def _parsed(json: bytes) -> Any:
    try:
        return orjson.loads(json)
    except orjson.JSONDecodeError:
        return None
