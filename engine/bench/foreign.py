"""One request answered outside our loop: by transformers' own `generate(do_sample=False)`.

It runs on the same weights, not packed, with the attention and the cache that transformers itself
would use, so that what is measured is what a user without this project has.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter
from typing import Any

from torch import Tensor

from engine.attention import NAME as TREE_ATTENTION
from engine.bench.answers import Answer
from engine.bench.contenders import GENERATE_LOOKUP, Contender
from engine.counting import count
from engine.decode import Limits
from engine.loading import LoadedModel
from engine.operators import unpacked
from engine.session import Request
from engine.stats import DecodeStats

SEEN = frozenset(
    {
        *("new_tokens", "passes", "mean_acceptance_length", "acceptance_histogram", "ttft_s"),
        *("encode_s", "decode_s", "decode_tokens_per_s", "ms_per_pass"),
    }
)
"""The measures that can be seen from outside, by when which tokens come."""


def generate(loaded: LoadedModel, contender: Contender, request: Request) -> Answer:
    """Answer a request, text included, as those who ask our loop get it too.

    Raises:
        RequestError: this request cannot be answered.
        Exception: whatever `generate()` raises.
    """
    started = perf_counter() - request.elapsed_s
    encoder, model = loaded.encoder, loaded.model
    prompt = encoder.encode(request.messages, request.pixels)
    counts = count(prompt, request.max_tokens, loaded.context_length)
    encoded = perf_counter()
    device = model.get_input_embeddings().weight.device
    inputs = {
        name: _moved(value, device, model.dtype) for name, value in prompt.model_inputs.items()
    }
    ids = prompt.input_ids.to(device)
    lookup = contender.options.nodes if contender.method == GENERATE_LOOKUP else None
    arrivals = Arrivals()
    with untouched(loaded):
        model.generate(
            input_ids=ids,
            attention_mask=ids.new_ones(ids.shape),
            **inputs,
            do_sample=False,
            num_beams=1,
            max_new_tokens=counts.answer_tokens,
            eos_token_id=sorted(loaded.stop_ids) or None,
            pad_token_id=min(loaded.stop_ids, default=0),
            prompt_lookup_num_tokens=lookup,
            streamer=arrivals,
        )
    limits = Limits(counts.answer_tokens, loaded.stop_ids)
    tokens = limits.until_end(arrivals.token_ids)[: limits.max_tokens]
    encoder.tokenizer.decode(tokens, skip_special_tokens=True)
    committed = arrivals.sizes(len(tokens))[1:]
    stats = DecodeStats(
        new_tokens=len(tokens),
        passes=len(committed),
        pass_tokens=sum(committed),
        ttft_s=arrivals.times[0] - started,
        encode_s=encoded - started,
        decode_s=arrivals.times[-1] - arrivals.times[0],
        acceptance_histogram=dict(Counter(committed)),
    )
    return Answer(
        token_ids=tokens,
        finish_reason="stop" if tokens[-1] in loaded.stop_ids else "length",
        prompt_tokens=counts.prompt_tokens,
        image_tokens=counts.image_tokens,
        committed=committed,
        measures={key: value if key in SEEN else None for key, value in stats.measures().items()},
    )


class Arrivals:
    """A streamer of transformers that keeps what comes when; the prompt comes first."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.times: list[float] = []
        self._ends: list[int] = []
        self._prompt_came = False

    def put(self, value: Tensor) -> None:
        """Tokens of the prompt, then those of each pass."""
        if self._prompt_came:
            self.token_ids += value.flatten().tolist()
            self._ends.append(len(self.token_ids))
            self.times.append(perf_counter())
        self._prompt_came = True

    def end(self) -> None:
        """Nothing is held back."""

    def sizes(self, tokens: int) -> list[int]:
        """How many of the first `tokens` tokens each pass brought."""
        ends = [min(end, tokens) for end in self._ends]
        return [end - start for start, end in pairwise([0, *ends]) if end > start]


@contextmanager
def untouched(loaded: LoadedModel) -> Iterator[None]:
    """The model with the attention that transformers chooses by itself, and not packed."""
    model, vision = loaded.model, loaded.family.vision

    def switch(name: str) -> None:
        model.set_attn_implementation({"text_config": name} if vision else name)

    try:
        switch("sdpa")
    except ValueError:  # this family has none
        switch("eager")
    try:
        with unpacked(model):
            yield
    finally:
        switch(TREE_ATTENTION)


def _moved(value: Tensor, device: Any, dtype: Any) -> Tensor:
    """On the model's device; pictures in its precision."""
    return value.to(device, dtype if value.is_floating_point() else None)
