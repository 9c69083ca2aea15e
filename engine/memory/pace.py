"""What sessions learned of their machine's speed, in a small file beside the token memory.

The file, `NAME.pace.json` beside `NAME.safetensors`, is JSON:
`{"format": 1, "paces": {KEY: NUMBERS}}`, the newest key last, at most `MOST` of them. A key names
model, precision, device and versions; what the numbers mean is the drafter's. It is a cache: one
that cannot be read is begun anew.
"""

from pathlib import Path
from typing import Any

import orjson

from engine.files import replace_file
from engine.memory.file import locked
from engine.memory.paths import pace_path

FORMAT = 1
MOST = 32
"""Machines, models and precisions that are remembered."""


def read_pace(memory: Path, key: str) -> dict[str, Any] | None:
    """What is remembered under a key beside this token memory; None where nothing is."""
    return _read(pace_path(memory)).get(key)


def write_pace(memory: Path, key: str, numbers: dict[str, Any]) -> None:
    """Remember numbers under a key, in place of what was.

    Raises:
        MemoryFileError: it cannot be locked or written; it is as before.
    """
    with locked(memory, "write"):
        paces = _read(pace_path(memory))
        paces.pop(key, None)
        kept = dict(list(paces.items())[1 - MOST :])
        content = {"format": FORMAT, "paces": kept | {key: numbers}}
        replace_file(pace_path(memory), orjson.dumps(content))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = orjson.loads(path.read_bytes())
        paces = content["paces"] if content["format"] == FORMAT else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return paces if isinstance(paces, dict) else {}
