"""What becomes of a device that runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import RecapError, RequestError

_SAID = ("out of memory", "can't allocate memory")


def ran_out(error: BaseException) -> bool:
    """Whether this error is that of a device without memory; of a CPU and of MPS its text says."""
    plain = isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)
    return plain or isinstance(error, torch.OutOfMemoryError)


@contextmanager
def within_memory(failure: RecapError | None = None) -> Iterator[None]:
    """A device that runs out of memory fails the request, not the session; or as `failure` says."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        raise failure or RequestError(
            "the device ran out of memory; use fewer or smaller pictures, or a shorter prompt"
        ) from error
