"""What a request would cost, told without loading the model's weights."""

from collections.abc import Iterator

from engine.counting import count, notices
from engine.events import Encoded, Notice
from engine.loading import load_reader
from engine.session import Request


def dry_run(model: str, request: Request) -> Iterator[Notice | Encoded]:
    """The events of a request up to `Encoded`, which is the last.

    Args:
        model: as `SessionOptions.model`; its config and processor are loaded, nothing else.

    Raises:
        ModelError: the model cannot be found, or its family is not supported.
        RequestError: the request cannot be answered.
    """
    reader = load_reader(model)
    prompt = reader.encoder.encode(request.messages, request.pixels)
    yield from notices(prompt, request.pixels)
    yield count(prompt, request.max_tokens, reader.context_length)
