"""Token ids as text, for people: by tokenizers that are on this machine, without transformers."""

from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from engine.files import user_path
from engine.memory.paths import tokenizer_fingerprint
from recap_cli.options import DEMO_MODEL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = "tokenizer.json"


def token_text(models: Iterable[str], fingerprint: str) -> Callable[[int], str]:
    """How tokens of the tokenizer with this fingerprint are shown.

    The first of `models` that is here and has that tokenizer gives the text, in quotes; without
    one, ids stand for themselves.
    """
    for tokenizer in filter(None, map(_local_tokenizer, models)):
        if tokenizer_fingerprint(tokenizer.get_vocab()) == fingerprint:
            return lambda token: _quoted(tokenizer, token)
    return str


def local_fingerprint(model: str) -> str | None:
    """Fingerprint of a model's tokenizer, if that is on this machine."""
    tokenizer = _local_tokenizer(model)
    return tokenizer_fingerprint(tokenizer.get_vocab()) if tokenizer else None


def _local_tokenizer(model: str) -> "Tokenizer | None":
    from tokenizers import Tokenizer  # noqa: PLC0415

    path = _tokenizer_file(model)
    if path is None:
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the bindings raise nothing narrower; a broken file only costs the text
        return None


def _tokenizer_file(model: str) -> Path | None:
    if model == DEMO_MODEL:
        path = Path(str(files("engine.demo"))) / "model" / _FILE
    elif (folder := user_path(model)).is_dir():
        path = folder / _FILE
    else:
        return _cached_file(model)
    return path if path.is_file() else None


def _cached_file(model: str) -> Path | None:
    """From the cache of Hugging Face's hub; asks nobody."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        found = try_to_load_from_cache(model, _FILE)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def _quoted(tokenizer: "Tokenizer", token: int) -> str:
    """A token in quotes; the vocabulary's own spelling where it is no whole text by itself."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    if not text or "\ufffd" in text:
        text = tokenizer.id_to_token(token) or str(token)
    return repr(text)
