"""A session owns the model, its cache and its memories, and answers requests one at a time.

What it says while it answers are the events of `engine.events`; it knows no terminal.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Self

from PIL import Image

from engine.compiled import require_compiler
from engine.counting import count, notices
from engine.decode import Cancel, Limits, decode, seed
from engine.device_memory import within_memory
from engine.drafters.base import Drafter
from engine.drafters.recap import Recap, RecapDrafter
from engine.drafters.recap_native import quickened
from engine.drafters.registry import METHODS, Method
from engine.errors import RequestError, UsageError
from engine.events import Committed, Event, Finished, FinishReason, Notice
from engine.loading import DEMO_MODEL, Device, DeviceMap, Dtype, LoadedModel, load_model
from engine.logits import GreedyRules, predict
from engine.machine import machine_name
from engine.memory.keeper import MemoryKeeper, Savable
from engine.memory.paths import memory_path, tokenizer_fingerprint
from engine.memory.transitions import TokenMemory
from engine.options import DrafterOptions
from engine.prefix import ReadPrompts, Rest
from engine.preparing import prepare
from engine.prompts import EncodedPrompt, Message
from engine.sizes import PixelLimits
from engine.stats import DecodeStats
from engine.target import Form, Target
from engine.text import AnswerText
from engine.tree import LANES, DraftTree

MOST_ROOM = 1024
"""Tokens of the answer that the cache gets room for at once; it grows for longer answers."""
TREE_ROOM = 8 * LANES
"""Keys of a tree, and the gaps between them, that it gets room for; it grows for wider trees."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session is opened with.

    Attributes:
        model: `demo`, a Hugging Face id, an alias of one, or a model folder.
        device: `auto`, `cpu`, `cuda` or `mps`.
        device_map: how accelerate spreads the model over devices; None puts it on one.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        method: how tokens are drafted; one of `engine.drafters.registry.METHODS`.
        memory: whether the token memory's file is read and written, if the method keeps one.
        memory_file: that file; None is the default one of the model's tokenizer.
        drafter: constants of the drafter.
        compile: whether passes are compiled, before the first request.
    """

    model: str = DEMO_MODEL
    device: Device = "auto"
    device_map: DeviceMap | None = None
    dtype: Dtype = "auto"
    method: Method = "recap"
    memory: bool = True
    memory_file: Path | None = None
    drafter: DrafterOptions = field(default_factory=DrafterOptions)
    compile: bool = False

    def __post_init__(self) -> None:
        if self.compile and self.device_map:
            raise UsageError("--compile and --device-map exclude each other")
        if self.method not in METHODS:
            raise UsageError(f"no method {self.method!r}; choose from {', '.join(METHODS)}")


@dataclass(frozen=True, slots=True)
class Request:
    """One conversation to answer: the last message is the user's.

    Attributes:
        messages: the conversation.
        max_tokens: longest answer; None is 512, or less where the context is too short for that.
        stop: strings that end the answer; its text ends before the first.
        pixels: sizes to which pictures are brought.
        elapsed_s: seconds already spent on the request (opening pictures), counted into TTFT.
    """

    messages: Sequence[Message]
    max_tokens: int | None = None
    elapsed_s: float = 0.0
    stop: Sequence[str] = ()
    pixels: PixelLimits = field(default_factory=PixelLimits)

    def __post_init__(self) -> None:
        if not all(self.stop):
            raise UsageError("a stop string is empty: every answer would end before it began")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How much a session has learned.

    Attributes:
        contextual_keys: keys of the contextual memory, which lives for one conversation.
        token_keys: keys of the token memory.
        path: the token memory's file; None where nothing is kept.
    """

    contextual_keys: int
    token_keys: int
    path: Path | None


class Session:
    """Use as a context manager; leaving it writes the token memory's file.

    Attributes:
        model_name: the model's id, where the user named it by an alias; else as it was named.
        device, dtype: where and in what the model computes.
        context_length: tokens that the model can attend to; None where that is not known.
        notices: what the user should read about opening the session.
    """

    def __init__(self, loaded: LoadedModel, options: SessionOptions) -> None:
        """Make a session of a model that is loaded; `open` loads one by name."""
        self.model_name = loaded.name
        self.device = str(loaded.model.device)
        self.dtype = str(loaded.model.dtype).removeprefix("torch.")
        self.context_length = loaded.context_length
        self.notices: list[Notice] = []
        self._loaded = loaded
        self._target = Target(loaded.model, loaded.family)
        self._to_compile = options.compile
        self._prepared = False
        if options.compile:
            require_compiler(self._target.device)
        self._rules = GreedyRules(loaded.model.generation_config, sorted(loaded.stop_ids))
        self._keeper: MemoryKeeper | None = None
        memory = TokenMemory()
        self._requests = 0
        self._turn = 0
        self._conversation: object | None = None
        self._read = ReadPrompts(loaded.encoder.placeholder_ids)
        method = METHODS[options.method]
        if method.remembers and options.drafter.persistence and options.memory:
            memory = self._open_memory(options.memory_file)
        placeholders = loaded.encoder.placeholder_ids
        drafter = self.fitted(options.method, options.drafter)
        self._own = method.make(drafter, memory, placeholders)
        self._drafter = self._own
        self._shared = memory

    @classmethod
    def open(cls, options: SessionOptions) -> Self:
        """Load model, processor and token memory.

        Raises:
            UsageError: an impossible choice (e.g. a device that is not there).
            ModelError: the model cannot be found, loaded or used.
        """
        loaded = load_model(options.model, options.device, options.dtype, options.device_map)
        return cls(loaded, options)

    @property
    def form(self) -> Form:
        """How passes run; as asked for, and as far as it can be done, once it is prepared."""
        return self._target.form

    def draft_with(self, drafter: Drafter) -> None:
        """Answer the requests that come with a drafter that was made, and has learned, elsewhere.

        For those who compare drafters; the session's own memory is not in it.
        """
        self._drafter = drafter
        self._conversation = None

    def prepare(self) -> Iterator[Notice]:
        """Do what takes its time before the first request; say so before, and how long it took.

        Each request does it if it was not done.
        """
        if self._prepared:
            return
        drafting = isinstance(self._own, RecapDrafter)
        yield from prepare(self._target, compile=self._to_compile, drafting=drafting)
        self._prepared = True
        own = quickened(self._own)
        if self._drafter is self._own:
            self._drafter = own
        self._own = own
        self._go_on_with_pace()

    def generate(
        self,
        request: Request,
        cancel: Cancel | None = None,
        conversation: object | None = None,
    ) -> Generator[Event]:
        """Answer one request; see `engine.events` for the order of events.

        Args:
            request: what is asked.
            cancel: ends the answer after the running pass, with `finish_reason="interrupt"`.
            conversation: a request that goes on with the one before names the same object. What
                both read alike is not read again, and the contextual memory stays.

        Closing the iterator early is allowed and leaves the session good for the next request.
        One request at a time: going on with an iterator after another was begun is an error.

        Raises:
            RequestError: this request cannot be answered; the session stays usable.
        """
        yield from self.prepare()
        self._turn += 1
        turn = self._turn
        started = perf_counter() - request.elapsed_s
        stats = DecodeStats()
        prompt = self._loaded.encoder.encode(request.messages, request.pixels)
        counts = count(prompt, request.max_tokens, self.context_length)
        yield from notices(prompt, request.pixels)
        yield counts
        self._refuse_to_go_on(turn)
        stats.encode_s = perf_counter() - started
        text = AnswerText(self._loaded.encoder.tokenizer, request.stop)
        ends = text.ends if request.stop else None
        limits = Limits(counts.answer_tokens, self._loaded.stop_ids, ends)
        ids: list[int] = []
        with within_memory():
            rest = self._rest(prompt, conversation)
            stats.kept_tokens = rest.kept
            for tokens in self._answer(prompt, rest, limits, stats, started, cancel):
                self._requests += not ids
                ids += tokens
                yield Committed(tokens, text.feed(tokens), stats)
                self._refuse_to_go_on(turn)
                if text.ended:
                    break
        tail = text.finish()
        if tail:
            yield Committed((), tail, stats)
        yield Finished(
            token_ids=ids,
            text=text.whole(),
            finish_reason="stop" if text.ended else _finish_reason(ids, limits),
            prompt_tokens=counts.prompt_tokens,
            image_tokens=counts.image_tokens,
            stats=stats,
        )

    def fitted(self, method: Method, options: DrafterOptions) -> DrafterOptions:
        """Options for this model: a size left to RECAP is one at which tokens stay plain's."""
        most = self._target.same_nodes
        if most is None or method != "recap" or not options.adaptive:
            return options
        return replace(options, nodes=min(options.nodes, most - 1))

    def picture_tokens(self, image: Image.Image, pixels: PixelLimits) -> int:
        """Tokens that stand for a picture in a request of its own.

        Raises:
            RequestError: the model cannot take it.
        """
        message = Message("user", "?", (image,))
        return self._loaded.encoder.encode([message], pixels).image_tokens

    def memory_use(self) -> MemoryUse:
        """How much was learned so far, and where it is kept."""
        contextual = self._own.contextual_keys if isinstance(self._own, Recap) else 0
        path = self._keeper.path if self._keeper else None
        return MemoryUse(contextual, len(self._memory), path)

    def save_memory(self) -> list[Notice]:
        """Merge what was learned into the memory's file; a failure is a notice, never an error.

        It is said once, and saving is not tried again.
        """
        if self._keeper is None or not self._memory.changed:
            return []
        if isinstance(self._own, Recap):
            self._own.settle()
        lines = self._keeper.save(self._memory, self._requests)
        if not lines and isinstance(self._own, Recap):
            self._keeper.save_pace(self._pace_key(), self._own.pace())
        self._requests = 0
        if lines:
            self._keeper = None
        return [Notice(line) for line in lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.save_memory()

    @property
    def _memory(self) -> Savable:
        """What its own drafter learned, as far as it outlives requests."""
        return self._own.memory if isinstance(self._own, Recap) else self._shared

    def _refuse_to_go_on(self, turn: int) -> None:
        """Raise RequestError where a request was begun since."""
        if self._turn != turn:
            raise RequestError("another request was begun; this one cannot go on")

    def _rest(self, prompt: EncodedPrompt, conversation: object | None) -> Rest:
        """What of a prompt is not in the cache; nothing is, where no conversation goes on."""
        if conversation is None or conversation is not self._conversation:
            self._drafter.start(())
            self._read = ReadPrompts(self._loaded.encoder.placeholder_ids)
        self._conversation = conversation
        return self._read.rest(prompt, self._target.cached if self._loaded.family.causal else 0)

    def _answer(
        self,
        prompt: EncodedPrompt,
        rest: Rest,
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
        logits = target.prefill(prompt, min(limits.max_tokens, MOST_ROOM) + TREE_ROOM, rest)
        self._read.text = history
        first = predict(rules.apply(logits, DraftTree([history[-1]]), history), 0).choices
        stats.new_tokens = 1
        stats.prefill_s = perf_counter() - encoded
        stats.ttft_s = perf_counter() - started
        yield limits.until_end(first)
        if first[0] not in limits.stop_ids and limits.max_tokens > 1:
            seeding = perf_counter()
            new = history[rest.kept :]
            drafter.resume(history[: rest.kept], new)
            seed(target, drafter, new, placeholders)
            drafter.observe(first)
            stats.seed_s = perf_counter() - seeding
        target.forget_prompt()
        history += first
        yield from decode(target, drafter, rules, history, limits, stats, cancel)

    def _go_on_with_pace(self) -> None:
        """Take up what was learned earlier of how fast passes are here."""
        if self._keeper and isinstance(self._own, Recap):
            pace = self._keeper.load_pace(self._pace_key())
            if pace:
                self._own.resume_pace(pace)

    def _pace_key(self) -> str:
        machine = machine_name(self._target.device)
        return f"{self.model_name}, {self.dtype}, {self._target.form}, {machine}"

    def _open_memory(self, file: Path | None) -> TokenMemory:
        tokenizer = self._loaded.encoder.tokenizer
        fingerprint = tokenizer_fingerprint(tokenizer.get_vocab())
        vocab_size = self._loaded.model.config.get_text_config().vocab_size
        path = file or memory_path(fingerprint)
        self._keeper = MemoryKeeper(path, fingerprint, self.model_name, vocab_size)
        memory, lines = self._keeper.load()
        self.notices += [Notice(line) for line in lines]
        return memory


def _finish_reason(ids: Sequence[int], limits: Limits) -> FinishReason:
    if ids and ids[-1] in limits.stop_ids:
        return "stop"
    return "length" if len(ids) >= limits.max_tokens else "interrupt"
