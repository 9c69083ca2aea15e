"""What was said in a conversation, turn by turn, and the file that keeps it.

The file is JSON. It names pictures by source and SHA-256 and holds none of their pixels; it is only
replaced whole, so that a crash loses no turn that was written. Knows no model.
"""

import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import orjson

from engine.errors import ImageError, TranscriptError
from engine.events import FinishReason
from engine.files import is_utf8, replace_file
from engine.image_sources import printable_name
from engine.images import ImageOptions, Picture, PictureSource, open_picture
from engine.prompts import Message
from engine.stats import DecodeStats

FORMAT = "recap conversation"
VERSION = 1

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer.

    Attributes:
        question: the user's message, pictures included.
        answer: the text that was shown, up to where it ended or was interrupted.
        token_ids: the answer's tokens, as `engine.events.Finished` has them.
        finish_reason: why the answer ended.
        prompt_tokens: tokens of the conversation up to the answer, those of pictures included.
        kept_tokens: how many of those the cache held from the turn before.
        measures: of the answer, under the names of DESIGN section 4.
    """

    question: Message
    answer: str
    token_ids: Sequence[int]
    finish_reason: FinishReason
    prompt_tokens: int
    kept_tokens: int
    measures: Mapping[str, object]

    @property
    def tokens(self) -> int:
        """Tokens of the conversation up to the end of the answer."""
        return self.prompt_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation as its file has it.

    Attributes:
        model: name of the model that answered last.
        system: the system message; None where there is none.
        exchanges: all of them, the oldest first.
        dropped: how many of the oldest the model does not read any more.
    """

    model: str
    system: str | None
    exchanges: Sequence[Exchange]
    dropped: int = 0


def save_transcript(path: Path, transcript: Transcript) -> None:
    """Write the file, private to its user, or leave the one that is there as it was.

    Raises:
        TranscriptError: it cannot be written, or a picture has no source to be named by.
    """
    exchanges = [_record(path, exchange) for exchange in transcript.exchanges]
    try:
        content = _written(transcript, exchanges)
        path = path.resolve()  # a link stays one
        with suppress(FileNotFoundError):
            _refuse_special(path)
        replace_file(path, content)
    except TypeError as error:  # text with bytes that are none
        raise TranscriptError(f"cannot write the conversation to {path}: {error}") from error
    except OSError as error:
        raise TranscriptError(
            f"cannot write the conversation to {path}: {error.strerror or error}; "
            "check its folder, or name another file"
        ) from error


def load_transcript(path: Path, options: ImageOptions | None = None) -> Transcript:
    """Read the file and open its pictures.

    Raises:
        TranscriptError: it cannot be read, or is no transcript; a picture is not there any more,
            or is another one now.
    """
    try:
        _refuse_special(path)
        record = orjson.loads(path.read_bytes())
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise TranscriptError(f"{path} is not JSON, so no conversation: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise TranscriptError(f"{path} is not a conversation that recap wrote")
    if record.get("version") != VERSION:
        raise TranscriptError(
            f"{path} has format version {record.get('version')}, and this recap reads {VERSION}: "
            "use the recap that wrote it, or a newer one"
        )
    try:
        return _Reader(path, options).transcript(record)
    except (AttributeError, TypeError, ValueError) as error:
        raise TranscriptError(f"{path} is damaged: {error}") from error


class _Reader:
    """Turns the JSON of one file back; opens every picture once."""

    def __init__(self, path: Path, options: ImageOptions | None) -> None:
        self._path = path
        self._options = options
        self._opened: dict[str, Picture] = {}

    def transcript(self, record: Mapping[str, Any]) -> Transcript:
        """Raises TypeError, ValueError or AttributeError for what no version ever wrote."""
        exchanges = [
            self._exchange(turn, each)
            for turn, each in enumerate(_get(record, "exchanges", list), start=1)
        ]
        dropped = _get(record, "dropped", int)
        if not 0 <= dropped <= len(exchanges):
            raise ValueError(f"'dropped' is {dropped}, of {len(exchanges)} exchanges")
        system = None if record.get("system") is None else _get(record, "system", str)
        return Transcript(_get(record, "model", str), system, exchanges, dropped)

    def _exchange(self, turn: int, record: Mapping[str, Any]) -> Exchange:
        reason: Any = _get(record, "finish_reason", str)
        if reason not in get_args(FinishReason):
            raise ValueError(f"'finish_reason' is {reason!r}")
        return Exchange(
            question=self._question(turn, _get(record, "question", dict)),
            answer=_get(record, "answer", str),
            token_ids=tuple(map(int, _get(record, "token_ids", list))),
            finish_reason=reason,
            prompt_tokens=_get(record, "prompt_tokens", int),
            kept_tokens=_get(record, "kept_tokens", int),
            measures=_measures(_get(record, "measures", dict)),
        )

    def _question(self, turn: int, record: Mapping[str, Any]) -> Message:
        sources = tuple(
            PictureSource(_get(each, "source", str), _get(each, "sha256", str))
            for each in _get(record, "pictures", list)
        )
        images = tuple(self._picture(turn, source).image for source in sources)
        text, template = _get(record, "text", str), _get(record, "template", bool)
        return Message("user", text, images, template, sources)

    def _picture(self, turn: int, source: PictureSource) -> Picture:
        """Open a picture, and make sure that it is the one that was talked about."""
        try:
            if source.name not in self._opened:
                self._opened[source.name] = open_picture(source.name, self._options)
        except ImageError as error:
            raise TranscriptError(f"{self._path}: picture of turn {turn}: {error}") from error
        picture = self._opened[source.name]
        if picture.origin.sha256 != source.sha256:
            raise TranscriptError(
                f"{self._path}: picture of turn {turn}: {picture.source} has changed since; "
                "put back what it was"
            )
        return picture


def _measures(record: dict[str, Any]) -> dict[str, Any]:
    """Those that an exchange has, each like what is written today; ValueError for others."""
    usual: dict[str, Any] = DecodeStats().measures()
    for name, value in record.items():
        like = usual.get(name)
        kinds = (int, float) if isinstance(like, int | float) else type(like)
        if like is not None and not isinstance(value, kinds):
            raise ValueError(f"measure {name!r} is {value!r}")
    sources = record.get("sources", {}).values()
    if not all(
        isinstance(each, dict) and isinstance(each.get("accepted"), int) for each in sources
    ):
        raise ValueError("measure 'sources' lacks what was accepted")
    return record


def _written(transcript: Transcript, exchanges: Sequence[Mapping[str, object]]) -> bytes:
    """The JSON, an exchange a line."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "model": transcript.model.encode(errors="replace").decode(),
        "system": transcript.system,
        "dropped": transcript.dropped,
    }
    lines = b",\n".join(map(orjson.dumps, exchanges))
    return orjson.dumps(head)[:-1] + b',"exchanges":[\n' + lines + b"\n]}\n"


def _record(path: Path, exchange: Exchange) -> dict[str, object]:
    question = exchange.question
    sources = question.sources
    if len(sources) != len(question.images) or any(source.name == "-" for source in sources):
        raise TranscriptError(
            f"cannot write the conversation to {path}: a picture in it came from no file"
        )
    for source in sources:
        if not is_utf8(source.name):
            raise TranscriptError(
                f"cannot write the conversation to {path}: the name of "
                f"{printable_name(source.name)} is not UTF-8; rename the picture"
            )
    return {
        "question": {
            "text": question.text,
            "template": question.template,
            "pictures": [{"source": source.name, "sha256": source.sha256} for source in sources],
        },
        "answer": exchange.answer,
        "token_ids": list(exchange.token_ids),
        "finish_reason": exchange.finish_reason,
        "prompt_tokens": exchange.prompt_tokens,
        "kept_tokens": exchange.kept_tokens,
        "measures": dict(exchange.measures),
    }


def _get(record: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    """A field of the type that it must have."""
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise TypeError(f"{name!r} is {value!r:.40}, not {kind.__name__}")
    return value


def _refuse_special(path: Path) -> None:
    """Keep off folders and devices, which a rename would destroy."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TranscriptError(f"{path} is not a regular file; name another file")
