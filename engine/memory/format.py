"""The token memory's file format, version 3: bytes <-> header and tables. Knows no locks, no paths.

The container is safetensors: 8 bytes little-endian size of a JSON object, that object, then the
tensors' bytes, which must fill the file exactly. It holds numbers only: nothing in it is executed.

`__metadata__` has one entry, `recap_memory`, a JSON object with exactly these fields:

    format_version  int       3. A reader refuses a greater one before it looks at anything else, so
                              every later version keeps this container, entry and field.
    tokenizer       str       fingerprint of the vocabulary (`engine.memory.paths`)
    models          [str]     models that wrote here, in the order of their first writing
    k               int       next tokens of a one-token key, 1 to 64
    keys            int       one-token keys, n
    phrases         int       two- and three-token keys, m
    first_used      str       ISO 8601 with offset: when the file was begun,
    last_used       str       and when it was last written
    requests        int       requests learned from
    checksum        int       CRC-32 (zlib's) over the tensors' bytes, in the order of this list

Tensors, all unsigned integers, little-endian, row-major:

    keys            U16 or U32  [n]     token ids, strictly increasing
    next_ids        U16 or U32  [n, k]  most probable first
    probs           U8          [n, k]  code c; never increasing along a row
    uses            U16         [n]     times that passes wrote this key; 65535 means "at least"
    phrase_keys     U64         [m]     strictly increasing. Bits 60 to 63 say how many tokens the
                                        key has, 1 two and 2 three; below are their ids of 20 bits,
                                        the last token's lowest. What is left is zero
    phrase_next_ids U16 or U32  [m, 4]  as next_ids
    phrase_probs    U8          [m, 4]  as probs
    phrase_stamps   U16 or U32  [m]     greater where a row was written later
    phrase_runs     U8          [m]     predictions in a row, this one included, that had the same
                                        first choice; 255 means "at least"

Ids and stamps take U16 where the greatest of that tensor fits, else U32 (ids are always below
2**31). A probability has a logarithmic code, which is as exact for small ones as for large ones:

    c = clip(255 + round(16 * log2(p)), 1, 255)        p = 2 ** ((c - 255) / 16)

so p comes back within 2.2 % down to 1.7e-5 (less becomes that), and 1 exactly. Decoding and
encoding again changes nothing. c = 0 means that the row has no such next token: p = 0, and the id
(written as 0) has no meaning. A one-token key takes 4 + 3k to 6 + 5k bytes: 28 to 46 at k = 8. A
longer key takes 23 to 33 bytes, and a writer keeps the 200,000 that were written last: 6.6 MB.

Version 1 lacked the field phrases and the tensors named phrase_*, and is read as one without longer
keys. Version 2 lacked phrase_runs, which are taken to be 1. What is written is always version 3.
"""

import zlib
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from engine.errors import CorruptMemory, ForeignMemory
from engine.memory.table import NO_NEXT, PHRASE_K, PhraseTable, Tables, TransitionTable
from engine.options import MOST_K

FORMAT_VERSION = 3
METADATA_KEY = "recap_memory"

_IDS = ("U16", "U32")
_TENSORS = {
    "keys": (1, _IDS, "n"),
    "next_ids": (1, _IDS, "nk"),
    "probs": (1, ("U8",), "nk"),
    "uses": (1, ("U16",), "n"),
    "phrase_keys": (2, ("U64",), "m"),
    "phrase_next_ids": (2, _IDS, "m4"),
    "phrase_probs": (2, ("U8",), "m4"),
    "phrase_stamps": (2, _IDS, "m"),
    "phrase_runs": (3, ("U8",), "m"),
}
"""The format version that brought a tensor, its types and its axes."""
_Columns = dict[str, NDArray[Any]]
_PROBABILITIES = np.exp2((np.arange(256) - 255) / 16).astype(np.float32)
_PROBABILITIES[0] = 0


@dataclass(frozen=True, slots=True)
class MemoryHeader:
    """What a token memory says of itself; the fields are those of the module's docstring.

    Raises:
        ValueError: a field is not as described there.
    """

    format_version: int
    tokenizer: str
    models: tuple[str, ...]
    k: int
    keys: int
    phrases: int
    first_used: str
    last_used: str
    requests: int

    def __post_init__(self) -> None:
        leasts = {"format_version": 1, "k": 1, "keys": 0, "phrases": 0, "requests": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a number of at least {least}")
        if self.k > MOST_K:
            raise ValueError(f"k must be at most {MOST_K}")
        if not all(isinstance(text, str) for text in (self.tokenizer, *self.models)):
            raise ValueError("tokenizer and models must be text")
        for moment in (self.first_used, self.last_used):
            if not isinstance(moment, str) or datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError("first_used and last_used must be ISO 8601 with an offset")


def pack(header: MemoryHeader, tables: Tables) -> bytes:
    """The file's bytes; `header` must count the tables' rows and columns."""
    tokens, phrases = tables
    columns = {
        "keys": _narrowest(tokens.keys),
        "next_ids": _narrowest(_present_or_zero(tokens.next_ids)),
        "probs": _encode(tokens.probs, tokens.next_ids != NO_NEXT),
        "uses": np.minimum(tokens.uses, np.iinfo(np.uint16).max).astype(np.uint16),
        "phrase_keys": phrases.keys,
        "phrase_next_ids": _narrowest(_present_or_zero(phrases.next_ids)),
        "phrase_probs": _encode(phrases.probs, phrases.next_ids != NO_NEXT),
        "phrase_stamps": _narrowest(phrases.stamps),
        "phrase_runs": phrases.runs,
    }
    fields = asdict(header) | {"checksum": _checksum(columns)}
    return save(columns, {METADATA_KEY: orjson.dumps(fields).decode()})


def load(path: Path) -> tuple[MemoryHeader, Tables]:
    """Read and check a file; the arrays are the caller's own.

    Raises:
        CorruptMemory: not a sound safetensors file, or not one as described above.
        ForeignMemory: a sound safetensors file of a newer format version, or no token memory.
        OSError: it cannot be opened.
    """
    try:
        with safe_open(path, framework="numpy") as container:
            header, checksum = _read_header(path, container.metadata() or {})
            columns = _read_columns(container, header)
            if _checksum(columns) != checksum:
                raise ValueError("the checksum differs")
            return header, _decode(columns)
    except (SafetensorError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptMemory(f"token memory {path} is corrupt ({reason})") from error


def _read_header(path: Path, metadata: dict[str, str]) -> tuple[MemoryHeader, int]:
    if METADATA_KEY not in metadata:
        raise ForeignMemory(f"{path} is a safetensors file but no token memory; name another file")
    fields = orjson.loads(metadata[METADATA_KEY])
    if not isinstance(fields, dict):
        raise ValueError("its header is no JSON object")
    version = fields.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ForeignMemory(
            f"token memory {path} has format version {version}, this recap reads {FORMAT_VERSION}; "
            "upgrade recap-vlm, or name another file"
        )
    if version == 1 and fields.setdefault("phrases", 0) != 0:
        raise ValueError("its header counts phrases, which version 1 has not")
    checksum = fields.pop("checksum", None)
    models = fields.pop("models", None)
    if not isinstance(checksum, int) or not isinstance(models, list):
        raise ValueError("its header lacks the checksum or the models")
    try:
        return MemoryHeader(models=tuple(models), **fields), checksum
    except TypeError as error:
        raise ValueError("its header lacks fields or has unknown ones") from error


def _read_columns(container: Any, header: MemoryHeader) -> _Columns:
    wanted = [name for name, (since, *_) in _TENSORS.items() if since <= header.format_version]
    if set(container.keys()) != set(wanted):
        raise ValueError("its tensors are not those of a token memory")
    sizes = {"n": header.keys, "k": header.k, "m": header.phrases, "4": PHRASE_K}
    for name in wanted:
        _, dtypes, axes = _TENSORS[name]
        column = container.get_slice(name)
        shape = [sizes[axis] for axis in axes]
        if column.get_dtype() not in dtypes or list(column.get_shape()) != shape:
            raise ValueError(f"{name} has the wrong type or shape")
    return {name: container.get_tensor(name) for name in wanted}


def _decode(columns: _Columns) -> Tables:
    tokens = TransitionTable(
        keys=columns["keys"].astype(np.int32),
        next_ids=_decode_ids(columns["next_ids"], columns["probs"]),
        probs=_PROBABILITIES.take(columns["probs"]),
        uses=columns["uses"].astype(np.uint32),
    )
    if "phrase_keys" not in columns:
        return Tables(tokens, PhraseTable.empty(PHRASE_K))
    once = np.ones(len(columns["phrase_keys"]), np.uint8)
    phrases = PhraseTable(
        keys=columns["phrase_keys"],
        next_ids=_decode_ids(columns["phrase_next_ids"], columns["phrase_probs"]),
        probs=_PROBABILITIES.take(columns["phrase_probs"]),
        stamps=columns["phrase_stamps"].astype(np.uint32),
        runs=columns.get("phrase_runs", once),
    )
    return Tables(tokens, phrases)


def _decode_ids(ids: NDArray[Any], codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    # An id from 2**31 on turns negative here, which the table refuses.
    next_ids = ids.astype(np.int32)
    next_ids[codes == 0] = NO_NEXT
    return next_ids


def _present_or_zero(next_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.where(next_ids == NO_NEXT, 0, next_ids)


def _encode(probs: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.uint8]:
    logs = np.log2(np.maximum(probs, _PROBABILITIES[1]))
    codes = np.clip(255 + np.rint(16 * logs), 1, 255).astype(np.uint8)
    return np.where(present, codes, np.uint8(0))


def _narrowest(ids: NDArray[Any]) -> NDArray[Any]:
    return ids.astype(np.uint16 if ids.max(initial=0) <= np.iinfo(np.uint16).max else np.uint32)


def _checksum(columns: _Columns) -> int:
    checksum = 0
    for name in _TENSORS:
        if name in columns:
            checksum = zlib.crc32(np.ascontiguousarray(columns[name]).data, checksum)
    return checksum
