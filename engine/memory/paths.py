"""Where token memories live, and what tells one tokenizer from another.

Knows names only; opens no file.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import orjson
from platformdirs import user_data_path

MEMORY_DIR_VARIABLE = "RECAP_MEMORY_DIR"
SUFFIX = ".safetensors"
CORRUPT = ".corrupt-"
"""Between the name of a memory that was moved aside and the time of that."""


def memory_folder() -> Path:
    """The folder of all token memories: `RECAP_MEMORY_DIR`, else `recap` under the user's data."""
    chosen = os.environ.get(MEMORY_DIR_VARIABLE)
    return Path(chosen) if chosen else user_data_path("recap", appauthor=False)


def memory_path(fingerprint: str) -> Path:
    """The token memory's file of the tokenizer with this fingerprint; it need not exist."""
    return memory_folder() / f"{fingerprint}{SUFFIX}"


def pace_path(memory: Path) -> Path:
    """The file beside a token memory in which the speed of machines is remembered."""
    return memory.with_name(f"{memory.name.removesuffix(SUFFIX)}.pace.json")


def list_memories(folder: Path) -> list[Path]:
    """The token memories in a folder, by name; none where there is no such folder.

    One of which only damaged copies are left is listed by the name that it had.
    """
    aside = folder.glob(f"*{SUFFIX}{CORRUPT}*")
    names = {path.name.rpartition(CORRUPT)[0] for path in aside}
    return sorted({*folder.glob(f"*{SUFFIX}"), *(folder / name for name in names)})


def tokenizer_fingerprint(vocab: Mapping[str, int]) -> str:
    """Name a vocabulary: 16 hex digits that depend on its (token, id) pairs, not on their order.

    The first 64 bits of SHA-256 over the vocabulary as compact UTF-8 JSON with sorted keys.
    """
    canonical = orjson.dumps(dict(vocab), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()[:16]
