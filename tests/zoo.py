"""Tiny models made once a run, requests for them, and the answers that every method must give.

The reference is transformers alone: its own attention, its own cache, its own `generate`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from engine.drafters.registry import Method
from engine.events import Finished
from engine.loading import LoadedModel, load_model
from engine.options import DrafterOptions
from engine.prompts import EncodedPrompt, Message
from engine.session import Request, Session, SessionOptions
from tests.models import FAMILIES, ODD_SIZES, build_tiny_model, picture

ANSWER = 24
"""Tokens that the longest answer has."""

Conversation = tuple[Message, ...]


def conversations(vision: bool) -> list[Conversation]:
    """No picture, pictures of odd sizes, several in one message, a system message, two turns."""
    texts: list[Conversation] = [
        (Message("user", "How many circles are there? Answer with one word, please."),),
        (
            Message("system", "Be brief."),
            Message("user", "Is the red square larger?"),
            Message("assistant", "Yes, it is."),
            Message("user", "Is the red square larger than the blue circle?"),
        ),
    ]
    if not vision:
        return [*texts, (Message("user", "12 12 12 12 12 12"),), (Message("user", "é 👍🏽 {x}"),)]
    shots = [picture(*size, seed=7) for size in ODD_SIZES]
    return [
        *texts,
        (Message("user", "What do you see?", (shots[1],)),),
        (Message("user", "What do you see?", (shots[3], shots[0], shots[2])),),
        (
            Message("user", "Describe it.", (shots[2],)),
            Message("assistant", "A red circle."),
            Message("user", "And this? Describe it.", (shots[4],)),
        ),
    ]


class Zoo:
    """Models by family, dtype and repetition penalty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.folder_of = cache(self._build)
        self.loaded = cache(self.load)
        self.reference = cache(self._load_reference)
        self.answers = cache(self._answer_all)

    def load(
        self, family: str, dtype: torch.dtype = torch.float32, penalty: float | None = None
    ) -> LoadedModel:
        """As `load_model` loads it, fresh; in float64 where asked, which users cannot choose."""
        loaded = load_model(str(self.folder_of(family, penalty)), "cpu", "float32")
        return replace(loaded, model=loaded.model.to(dtype))

    def _build(self, family: str, penalty: float | None = None) -> Path:
        folder = self._folder / f"{family}-{penalty}"
        return build_tiny_model(family, folder, repetition_penalty=penalty)

    def _load_reference(self, family: str, dtype: torch.dtype, penalty: float | None) -> Any:
        vision = "preprocessor_config.json" in FAMILIES[family].files
        auto: Any = AutoModelForImageTextToText if vision else AutoModelForCausalLM
        folder = self.folder_of(family, penalty)
        # In some releases Gemma 2's `sdpa` forgets the cap of its products.
        attention = "eager" if family in ("gemma2", "paligemma2") else "sdpa"
        model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
        return model.to(dtype).eval()

    def _answer_all(
        self, family: str, dtype: torch.dtype, penalty: float | None
    ) -> list[list[int]]:
        """The reference's answers to `conversations`, in order."""
        loaded = self.loaded(family, dtype, penalty)
        model = self.reference(family, dtype, penalty)
        return [
            generated(model, loaded.encoder.encode(messages))
            for messages in conversations(loaded.family.vision)
        ]


def generated(
    model: Any, prompt: EncodedPrompt, max_tokens: int = ANSWER, **options: Any
) -> list[int]:
    """Token ids of transformers' `generate(do_sample=False)`."""
    tokens: torch.Tensor = model.generate(
        input_ids=prompt.input_ids,
        attention_mask=torch.ones_like(prompt.input_ids),
        **prompt.model_inputs,
        do_sample=False,
        max_new_tokens=max_tokens,
        **options,
    )
    answer: list[int] = tokens[0, prompt.input_ids.shape[1] :].tolist()
    return answer


def session(
    loaded: LoadedModel,
    method: Method = "recap",
    memory_file: Path | None = None,
    drafter: DrafterOptions | None = None,
) -> Session:
    """A session without a memory file unless one is given."""
    options = SessionOptions(
        method=method,
        memory=memory_file is not None,
        memory_file=memory_file,
        drafter=drafter or DrafterOptions(),
    )
    return Session(loaded, options)


def finished(
    session: Session, messages: Sequence[Message], max_tokens: int | None = ANSWER
) -> Finished:
    """The last event of a request."""
    *_, last = session.generate(Request(messages, max_tokens))
    assert isinstance(last, Finished)
    return last


def answers(session: Session, vision: bool) -> list[list[int]]:
    """Token ids of the session's answers to `conversations`, in order."""
    return [list(finished(session, messages).token_ids) for messages in conversations(vision)]
