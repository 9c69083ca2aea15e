"""Counts a request against the model's context, before anything is computed."""

from engine.errors import ContextError
from engine.events import Encoded, Notice
from engine.options import DEFAULT_MAX_TOKENS
from engine.prompts import EncodedPrompt
from engine.sizes import PixelLimits

MANY_IMAGE_TOKENS = 2000
"""What the pictures of a request may take without a notice."""


def count(prompt: EncodedPrompt, max_tokens: int | None, context_length: int | None) -> Encoded:
    """The counts of a request.

    Args:
        max_tokens: longest answer; None is `DEFAULT_MAX_TOKENS`, or what the context leaves.
        context_length: tokens that the model can attend to; None where that is not known.

    Raises:
        ContextError: more tokens than the context holds.
    """
    tokens = prompt.input_ids.shape[1]
    # Beyond `longest` the model would have to read its text again, in another way.
    context_length = min(filter(None, (context_length, prompt.longest)), default=None)
    wanted = max_tokens or DEFAULT_MAX_TOKENS
    if context_length is not None and max_tokens is None:
        wanted = max(min(wanted, context_length - tokens), 1)
    if context_length is not None and tokens + wanted > context_length:
        ways = ["fewer or smaller pictures (--max-pixels)"] if prompt.image_tokens else []
        ways.append("a shorter prompt")
        if tokens < context_length:
            ways.append("fewer --max-tokens")
        *others, last = ways
        way_out = f"{', '.join(others)}, or {last}" if others else last
        raise ContextError(
            f"{tokens - prompt.image_tokens} text + {prompt.image_tokens} image + {wanted} "
            f"answer tokens do not fit into the model's {context_length}; "
            f"use {way_out}"
        )
    return Encoded(tokens, prompt.image_tokens, wanted, context_length, prompt.rendered)


def notices(prompt: EncodedPrompt, pixels: PixelLimits) -> list[Notice]:
    """What the user should read about an encoded prompt."""
    lines = list(prompt.notices)
    if prompt.image_tokens >= MANY_IMAGE_TOKENS and pixels.most is None:
        lines.append(
            f"the pictures take {prompt.image_tokens} tokens; with --max-pixels 500000 or the like "
            "they take fewer, and the answer starts sooner"
        )
    return [Notice(line) for line in lines]
