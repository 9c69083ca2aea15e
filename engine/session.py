"""A session owns the model, its cache and its memories, and answers requests one at a time.

What it says while it answers are the events of `engine.events`; it knows no terminal.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Self

import torch

from engine.decode import Cancel, Limits, decode, seed
from engine.drafters.registry import METHODS, Method
from engine.errors import ContextError, RequestError, UsageError
from engine.events import Committed, Encoded, Event, Finished, FinishReason, Notice
from engine.loading import DEMO_MODEL, Device, Dtype, LoadedModel, load_model
from engine.logits import GreedyRules, predict
from engine.memory.keeper import MemoryKeeper
from engine.memory.paths import memory_path, tokenizer_fingerprint
from engine.memory.transitions import TokenMemory
from engine.options import DEFAULT_MAX_TOKENS, DrafterOptions
from engine.prompts import EncodedPrompt, Message
from engine.stats import DecodeStats
from engine.target import Target
from engine.text import TextStream
from engine.tree import DraftTree


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session is opened with.

    Attributes:
        model: `demo`, a Hugging Face id, or a model folder.
        device: `auto`, `cpu`, `cuda` or `mps`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        method: how tokens are drafted; one of `engine.drafters.registry.METHODS`.
        memory: whether the token memory's file is read and written, if the method keeps one.
        memory_file: that file; None is the default one of the model's tokenizer.
        drafter: constants of the drafter.
    """

    model: str = DEMO_MODEL
    device: Device = "auto"
    dtype: Dtype = "auto"
    method: Method = "recap"
    memory: bool = True
    memory_file: Path | None = None
    drafter: DrafterOptions = field(default_factory=DrafterOptions)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"no method {self.method!r}; choose from {', '.join(METHODS)}")


@dataclass(frozen=True, slots=True)
class Request:
    """One conversation to answer: the last message is the user's.

    Attributes:
        messages: the conversation.
        max_tokens: longest answer; None is 512, or less where the context is too short for that.
        elapsed_s: seconds already spent on the request (opening pictures), counted into TTFT.
    """

    messages: Sequence[Message]
    max_tokens: int | None = None
    elapsed_s: float = 0.0

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {self.max_tokens}")


class Session:
    """Use as a context manager; leaving it writes the token memory's file.

    Attributes:
        model_name: as the user named the model.
        device, dtype: where and in what the model computes.
        notices: what the user should read about opening the session.
    """

    def __init__(self, loaded: LoadedModel, options: SessionOptions) -> None:
        """Make a session of a model that is loaded; `open` loads one by name."""
        self.model_name = loaded.name
        self.device = str(loaded.model.device)
        self.dtype = str(loaded.model.dtype).removeprefix("torch.")
        self.notices: list[Notice] = []
        self._loaded = loaded
        self._target = Target(loaded.model, loaded.family)
        self._rules = GreedyRules(loaded.model.generation_config, sorted(loaded.stop_ids))
        self._keeper: MemoryKeeper | None = None
        self._memory = TokenMemory()
        self._requests = 0
        self._nodes = options.drafter.nodes
        method = METHODS[options.method]
        if method.remembers and options.drafter.persistence and options.memory:
            self._open_memory(options.memory_file)
        self._drafter = method.make(options.drafter, self._memory, loaded.encoder.placeholder_ids)

    @classmethod
    def open(cls, options: SessionOptions) -> Self:
        """Load model, processor and token memory.

        Raises:
            UsageError: an impossible choice (e.g. a device that is not there).
            ModelError: the model cannot be found, loaded or used.
        """
        return cls(load_model(options.model, options.device, options.dtype), options)

    def generate(self, request: Request, cancel: Cancel | None = None) -> Iterator[Event]:
        """Answer one request; see `engine.events` for the order of events.

        Setting `cancel` ends the answer after the running pass with `finish_reason="interrupt"`.
        Closing the iterator early is allowed and leaves the session good for the next request.

        Raises:
            RequestError: this request cannot be answered; the session stays usable.
        """
        started = perf_counter() - request.elapsed_s
        stats = DecodeStats()
        prompt = self._loaded.encoder.encode(request.messages)
        limits = self._limits(prompt, request.max_tokens)
        yield Encoded(prompt.input_ids.shape[1], prompt.image_tokens, self._loaded.context_length)
        self._requests += 1
        stats.encode_s = perf_counter() - started
        stream = TextStream(self._loaded.encoder.tokenizer)
        ids: list[int] = []
        with _within_memory():
            for tokens in self._answer(prompt, limits, stats, started, cancel):
                ids += tokens
                yield Committed(tokens, stream.feed(tokens), stats)
        rest = stream.finish()
        if rest:
            yield Committed((), rest, stats)
        yield Finished(
            token_ids=ids,
            text=stream.whole(),
            finish_reason=_finish_reason(ids, limits),
            prompt_tokens=prompt.input_ids.shape[1],
            image_tokens=prompt.image_tokens,
            stats=stats,
        )

    def save_memory(self) -> list[Notice]:
        """Merge what was learned into the memory's file; a failure is a notice, never an error."""
        if self._keeper is None:
            return []
        lines = self._keeper.save(self._memory, self._requests)
        if not lines:
            self._requests = 0
        return [Notice(line) for line in lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.save_memory()

    def _answer(
        self,
        prompt: EncodedPrompt,
        limits: Limits,
        stats: DecodeStats,
        started: float,
        cancel: Cancel | None,
    ) -> Iterator[list[int]]:
        """Prefill, seed, decode; yield what is committed."""
        target, drafter, rules = self._target, self._drafter, self._rules
        history: list[int] = prompt.input_ids[0].tolist()
        placeholders = self._loaded.encoder.placeholder_ids
        rules.start(len(history), limits.max_tokens, target.device)
        encoded = perf_counter()
        logits = target.prefill(prompt, limits.max_tokens + self._nodes)
        first = predict(rules.apply(logits, DraftTree([history[-1]]), history), 0).choices
        stats.new_tokens = 1
        stats.prefill_s = perf_counter() - encoded
        stats.ttft_s = perf_counter() - started
        yield first
        if first[0] not in limits.stop_ids and limits.max_tokens > 1:
            seeding = perf_counter()
            drafter.start(history)
            if drafter.seeds:
                seed(target, drafter, history, placeholders)
            drafter.observe(first)
            stats.seed_s = perf_counter() - seeding
        target.forget_prompt()
        history += first
        yield from decode(target, drafter, rules, history, limits, stats, cancel)

    def _limits(self, prompt: EncodedPrompt, max_tokens: int | None) -> Limits:
        """How long the answer may get; refuses what the context cannot hold."""
        context, tokens = self._loaded.context_length, prompt.input_ids.shape[1]
        wanted = max_tokens or DEFAULT_MAX_TOKENS
        if context is not None and max_tokens is None:
            wanted = max(min(wanted, context - tokens), 1)
        if context is not None and tokens + wanted > context:
            raise ContextError(
                f"{tokens - prompt.image_tokens} text + {prompt.image_tokens} image + {wanted} "
                f"answer tokens do not fit into the model's {context}; "
                "use fewer or smaller pictures, a shorter prompt, or fewer --max-tokens"
            )
        return Limits(wanted, self._loaded.stop_ids)

    def _open_memory(self, file: Path | None) -> None:
        tokenizer = self._loaded.encoder.tokenizer
        fingerprint = tokenizer_fingerprint(tokenizer.get_vocab())
        vocab_size = self._loaded.model.config.get_text_config().vocab_size
        path = file or memory_path(fingerprint)
        self._keeper = MemoryKeeper(path, fingerprint, self.model_name, vocab_size)
        self._memory, lines = self._keeper.load()
        self.notices += [Notice(line) for line in lines]


def _finish_reason(ids: Sequence[int], limits: Limits) -> FinishReason:
    if ids and ids[-1] in limits.stop_ids:
        return "stop"
    return "length" if len(ids) >= limits.max_tokens else "interrupt"


@contextmanager
def _within_memory() -> Iterator[None]:
    """A device that runs out of memory fails the request, not the session."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RequestError(
            "the device ran out of memory; use fewer or smaller pictures, or a shorter prompt"
        ) from error
