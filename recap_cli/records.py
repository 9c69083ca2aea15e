"""What `--json` writes: one object with the keys of the design's sections 3 and 4, in any case."""

import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import orjson

from engine.events import Committed, Encoded, Finished
from engine.stats import DecodeStats
from recap_cli.terminal import utf8

_PACKAGES = {"recap": "recap-vlm", "torch": "torch", "transformers": "transformers"}


@dataclass(slots=True)
class Record:
    """One request and what became of it; grows while the request is answered.

    Until an answer is finished, `text` and `token_ids` hold what was committed so far, and the
    measures are null; until the request is counted, so are the counts.
    """

    model: str
    method: str
    prompt: str | None = None
    system: str | None = None
    images: list[str] = field(default_factory=list)
    device: str | None = None
    dtype: str | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    encoded: Encoded | None = None
    finished: Finished | None = None
    notices: list[str] = field(default_factory=list)
    error: str | None = None

    def commit(self, event: Committed) -> None:
        """Keep what is final, in case nothing more comes."""
        self.text += event.text
        self.token_ids.extend(event.token_ids)

    def finish(self, event: Finished) -> None:
        """Keep the whole answer."""
        self.finished = event
        self.text = event.text
        self.token_ids = list(event.token_ids)

    def to_json(self) -> bytes:
        """One JSON object and a newline, UTF-8."""
        done, counts = self.finished, self.encoded
        measures = done.stats.measures() if done else dict.fromkeys(DecodeStats().measures())
        record = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": done.finish_reason if done else None,
            "model": utf8(self.model),
            "method": self.method,
            "device": self.device,
            "dtype": self.dtype,
            "prompt": self.prompt and utf8(self.prompt),
            "system": self.system and utf8(self.system),
            "images": [utf8(source) for source in self.images],
            "error": self.error and utf8(self.error),
            "notices": [utf8(notice) for notice in self.notices],
            "versions": versions(),
            "rendered_prompt": counts.rendered if counts else None,
            "prompt_tokens": counts.prompt_tokens if counts else None,
            "image_tokens": counts.image_tokens if counts else None,
            "kept_tokens": done.stats.kept_tokens if done else None,
            "max_tokens": counts.answer_tokens if counts else None,
            "context_length": counts.context_length if counts else None,
            **measures,
        }
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def versions() -> dict[str, str | None]:
    """Versions of what an answer depends on, read without importing any of it."""
    return {"python": platform.python_version()} | {
        name: installed_version(package) for name, package in _PACKAGES.items()
    }


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
