"""Where a picture's bytes come from: a file, standard input, an http(s) URL or a data: URL.

Knows nothing of pictures: what the bytes mean is the business of `images`.
"""

import base64
import binascii
import http.client
import importlib.metadata
import io
import os
import re
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from engine.errors import ImageError
from engine.files import user_path

_CHUNK_BYTES = 1 << 20
_LONGEST_NAME = 300  # characters of a source that an error message repeats
_URL_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_URL_SAFE = "/%:@!$&'()*+,;=~?"  # "%" stays, so that an address already quoted is not quoted twice


def open_source(source: str, stdin: BinaryIO | None, timeout_s: float, max_bytes: int) -> BinaryIO:
    """Open what `source` names as a seekable binary stream that stands at its first byte.

    `-` is `stdin`. A regular file is not read yet; everything else is read whole, up to
    `max_bytes`. An http(s) server gets `timeout_s` seconds for each wait and for the whole body.

    Raises:
        ImageError: the source cannot be opened or read, is too large, or took too long.
    """
    if source == "-":
        return _read_stdin(source, stdin, max_bytes)
    if source[:5].lower() == "data:":
        return _decode_data_url(source)
    if scheme := _URL_SCHEME.match(source):
        if scheme[1].lower() not in ("http", "https"):
            refuse(source, "only http, https and data URLs are read; save it, and name the file")
        return _download(source, timeout_s, max_bytes)
    return _open_file(source, max_bytes)


def absolute(source: str) -> str:
    """What names the same picture from any folder: of a file its path, else `source` itself."""
    return source if source == "-" or is_url(source) else str(user_path(source).absolute())


def is_url(source: str) -> bool:
    """Whether it is a URL, of any scheme, and no path."""
    return source[:5].lower() == "data:" or _URL_SCHEME.match(source) is not None


def printable_name(source: str) -> str:
    """`source` on one line and safe to print: control characters and undecodable bytes of file
    names are escaped, and of a data: URL only what stands before the data is kept."""
    if source[:5].lower() == "data:":
        source = source[:_LONGEST_NAME].partition(",")[0] + ",…"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in source
    )


def refuse(source: str, reason: str, cause: BaseException | None = None) -> NoReturn:
    """Raise the ImageError "source: reason", on one line."""
    name = "standard input" if source == "-" else printable_name(source) or "''"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:100]}…{name[-100:]}"
    raise ImageError(f"{name}: {' '.join(reason.split())}") from cause


def _read_stdin(source: str, stdin: BinaryIO | None, max_bytes: int) -> BinaryIO:
    if stdin is None:
        refuse(source, "not to be read here; name a file")
    return _gather(source, iter(lambda: stdin.read(_CHUNK_BYTES), b""), max_bytes)


def _gather(source: str, chunks: Iterable[bytes], max_bytes: int) -> BinaryIO:
    gathered = io.BytesIO()
    for chunk in chunks:
        gathered.write(chunk)
        if gathered.tell() > max_bytes:
            _refuse_size(source, max_bytes)
    gathered.seek(0)
    return gathered


def _refuse_size(source: str, max_bytes: int) -> NoReturn:
    limit = f"over the limit of {max_bytes / 1e6:g} MB for what is not a file"
    refuse(source, f"{limit}; save it, and name the file")


def _open_file(source: str, max_bytes: int) -> BinaryIO:
    if not source:
        refuse(source, "an empty name; give a file, a URL, or - for standard input")
    path = user_path(source)
    try:
        stream = path.open("rb")
    except FileNotFoundError as error:
        refuse(source, _why_missing(path), error)
    except IsADirectoryError as error:
        refuse(source, "a folder, not a picture; name a file in it", error)
    except PermissionError as error:
        refuse(source, "this user may not read it; check the permissions (chmod u+r)", error)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        refuse(source, f"cannot be opened ({_reason(error)}); check the name", error)
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    with stream:  # a pipe, such as the shell's <(command), or a device without an end
        return _gather(source, iter(lambda: stream.read(_CHUNK_BYTES), b""), max_bytes)


def _why_missing(path: Path) -> str:
    if path.is_symlink():
        target = printable_name(str(path.readlink()))
        return f"a link to {target}, which does not exist; repair the link, or name the file"
    folder = path.parent.absolute()
    if not folder.is_dir():
        return f"there is no folder {printable_name(str(folder))}; check the path"
    return f"no such file in {printable_name(str(folder))}; check the name"


def _decode_data_url(source: str) -> BinaryIO:
    head, comma, data = source.partition(",")
    if not comma:
        refuse(source, "a data: URL without data; it should read data:image/png;base64,DATA")
    raw = urllib.parse.unquote_to_bytes(data)
    if not head.lower().endswith(";base64"):
        return io.BytesIO(raw)
    packed = b"".join(raw.split()).rstrip(b"=")
    try:
        return io.BytesIO(base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True))
    except binascii.Error as error:
        refuse(source, "its data is not base64; copy the URL again, whole", error)


def _download(source: str, timeout_s: float, max_bytes: int) -> BinaryIO:
    deadline = time.monotonic() + timeout_s
    try:
        with _opener().open(_request(source), timeout=timeout_s) as response:
            if (response.length or 0) > max_bytes:
                _refuse_size(source, max_bytes)
            return _gather(source, _body(response, deadline), max_bytes)
    except urllib.error.HTTPError as error:
        with error:
            status = f"{error.code} {error.reason}".strip()
            if "infinite loop" in status:  # urllib's own words, over several lines
                status = f"{error.code} again and again, redirecting in a circle"
            refuse(source, f"the server answered {status}; check the address", error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            reason = f"not here within {timeout_s:g} s; try again, or save it and name the file"
            refuse(source, reason, error)
        reason = f"cannot be fetched ({_reason(error)}); check the address and the network"
        refuse(source, reason, error)


def _opener() -> urllib.request.OpenerDirector:
    """Speaks http and https only, also after a redirection (urllib's own would follow to ftp)."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _request(source: str) -> urllib.request.Request:
    """Spaces and letters outside ASCII are quoted, as browsers do with a pasted address."""
    parts = urllib.parse.urlsplit(source)
    quoted = parts._replace(
        path=urllib.parse.quote(parts.path, safe=_URL_SAFE),
        query=urllib.parse.quote(parts.query, safe=_URL_SAFE),
        fragment="",
    )
    headers = {"User-Agent": f"recap-vlm/{_version()}", "Accept": "image/*,*/*;q=0.5"}
    return urllib.request.Request(quoted.geturl(), headers=headers)


def _version() -> str:
    try:
        return importlib.metadata.version("recap-vlm")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "dev"


def _body(response: http.client.HTTPResponse, deadline: float) -> Iterator[bytes]:
    # read1, because read would sit through a slow server's every drop before it looks at the time
    while chunk := response.read1(_CHUNK_BYTES):
        if time.monotonic() > deadline:
            raise TimeoutError
        yield chunk
    if response.length:  # of the announced bytes, those that never came
        raise ConnectionError(f"the connection closed {response.length} bytes before the end")


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", error)  # what a URLError wraps
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
