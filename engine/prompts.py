"""Messages and pictures -> token ids and pixel tensors, by the model's own template and processor.

What a user types is text, pictures stand in front of the text of their message in the order given
or where its references put them, and a picture that would be left out is an error. Knows nothing of
weights, caches or decoding.
"""

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor

from engine.control_tokens import ControlTokens, LiteralTokenizer
from engine.errors import ImageError, PromptError
from engine.families import Family
from engine.images import PictureSource
from engine.processors import Processor
from engine.sizes import PixelLimits, limited, repaired
from engine.turns import Role, Turn, in_order, turn_of, without_system


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: who speaks.
        text: what is said; never markup.
        images: upright RGB pictures, only with a user's message.
        template: whether `{1}` in the text is where the first picture stands, `{2}` the second,
            and so on; `{{1}}` is then the text `{1}`.
        sources: what the pictures were read from, in order; for a transcript.
    """

    role: Role
    text: str
    images: tuple[Image.Image, ...] = ()
    template: bool = False
    sources: tuple[PictureSource, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A conversation as the model reads it, up to where its answer begins.

    Attributes:
        input_ids: [1, T] int64 on the CPU; every picture's placeholder expanded to its features.
        model_inputs: what `forward` takes beside ids and mask, by name: `pixel_values`,
            `image_grid_thw`, `image_sizes`, `mm_token_type_ids`, ...; empty for a text-only model.
        image_tokens: how many of the ids stand for pictures.
        rendered: what the chat template wrote, before expansion.
        notices: what the user should know about it.
        longest: tokens that prompt and answer may have together; None where only the model's
            context limits them.
    """

    input_ids: Tensor
    model_inputs: dict[str, Tensor]
    image_tokens: int
    rendered: str
    notices: tuple[str, ...] = ()
    longest: int | None = None


class PromptEncoder:
    """Encodes conversations for one model; made once, used for every request.

    The ids equal those of the model's own `apply_chat_template`, except that control tokens in
    what the user typed stay text. Three fallbacks:

    - A model without a chat template gets plain text: the messages' texts with an empty line
      between them, each behind its pictures, and the tokens that its tokenizer puts around a text;
      or what its family has for that.
    - A template that refuses or ignores a system message gets its text in front of the first
      user's text, with an empty line between them.
    - A template that moves pictures away from where the references of a message put them gets
      that message as one text, in which pictures are marked as the family marks them.

    Attributes:
        tokenizer: transformers' tokenizer of the model.
        placeholder_ids: ids that stand for image or video features.
    """

    def __init__(self, processor: Processor, family: Family, config: Any) -> None:
        """Prepare everything that does not depend on the request.

        Args:
            processor: the model's tokenizer and processor.
            family: the model's family.
            config: the model's config.
        """
        self.tokenizer = processor.tokenizer
        self.placeholder_ids = family.placeholder_ids(config)
        self._multimodal = processor.multimodal
        self._family = family
        self._template = _chat_template(processor) or family.layout or None
        self._control = ControlTokens(self.tokenizer, self._template or "", self.placeholder_ids)
        self._short = family.short_length(config)
        self._placeholders = torch.tensor(sorted(self.placeholder_ids), dtype=torch.int64)

    def encode(
        self, messages: Sequence[Message], pixels: PixelLimits | None = None
    ) -> EncodedPrompt:
        """Encode a conversation whose last message is the user's, pictures within `pixels`.

        A picture that the model's processor refuses as too small or too thin is scaled up or gets
        a margin, and a notice says so.

        Raises:
            PromptError: the template, or a text-only model, cannot take this conversation.
            ImageError: the model's processor cannot take a picture.
        """
        self._check(messages)
        hidden = [
            self._control.hide(message.text, answered=message.role == "assistant")
            for message in messages
        ]
        literal = any(ours != theirs.text for ours, theirs in zip(hidden, messages, strict=True))
        turns = [
            turn_of(message.role, text, message.images, template=message.template)
            for message, text in zip(messages, hidden, strict=True)
        ]
        rendered = self._render(turns)
        images = [image for turn in turns for image in turn.images]
        self._check_count("template has a place for", self._places(rendered), len(images))
        inputs, notices = self._process(rendered, images, literal, pixels or PixelLimits())
        input_ids = inputs.pop("input_ids")
        del inputs["attention_mask"]  # all ones: one prompt is never padded
        if images and self._family.image_rows:
            rows = len(inputs[self._family.image_rows])
            self._check_count("processor returned", rows, len(images))
        return EncodedPrompt(
            input_ids=input_ids,
            model_inputs=inputs,
            image_tokens=int(torch.isin(input_ids, self._placeholders).sum()),
            rendered=self._control.reveal(rendered),
            notices=tuple(notices),
            longest=self._short if self._short and input_ids.shape[1] <= self._short else None,
        )

    def _check(self, messages: Sequence[Message]) -> None:
        if not messages or messages[-1].role != "user":
            raise PromptError("a conversation must end with a message of the user")
        for message in messages:
            if message.images and message.role != "user":
                raise PromptError(
                    f"pictures belong to the user's messages, not to {message.role}'s"
                )
            if message.images and not self._family.vision:
                raise PromptError(
                    f"{self._family.name} models only read text: choose a vision model for pictures"
                )
            try:
                message.text.encode()
            except UnicodeEncodeError as error:
                raise PromptError("the prompt is not valid UTF-8 text") from error

    def _check_count(self, who: str, found: int, given: int) -> None:
        if found != given:
            raise ImageError(f"the model's {who} {found} pictures, but {given} were given")

    def _places(self, rendered: str) -> int:
        return rendered.count(self._family.image_token) if self._family.vision else 0

    def _render(self, turns: Sequence[Turn]) -> str:
        """The conversation as one string, one placeholder a picture."""
        markup = self._family.image_markup
        if self._template is None:
            return "\n\n".join(turn.written(markup) for turn in turns)
        rendered = self._render_with_system(turns)
        if in_order(turns, rendered, self._family.image_token):
            return rendered
        return self._render_with_system(
            [Turn(turn.role, (turn.written(markup),)) if turn.placed else turn for turn in turns]
        )

    def _render_with_system(self, turns: Sequence[Turn]) -> str:
        first = turns[0]
        if first.role != "system":
            return self._apply_template(turns)
        with suppress(PromptError):
            rendered = self._apply_template(turns)
            if first.written("").strip() in rendered:
                return rendered
        return self._apply_template(without_system(turns))

    def _apply_template(self, turns: Sequence[Turn]) -> str:
        conversation = [{"role": turn.role, "content": self._content(turn)} for turn in turns]
        try:
            rendered: str = self.tokenizer.apply_chat_template(
                conversation,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(
                f"the model's chat template refuses this conversation: {_one_line(error)}"
            ) from error
        return rendered

    def _content(self, turn: Turn) -> str | list[dict[str, str]]:
        if not self._family.vision:
            return turn.written("")
        return [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in turn.parts
        ]

    def _process(
        self, rendered: str, images: list[Image.Image], literal: bool, pixels: PixelLimits
    ) -> tuple[dict[str, Tensor], list[str]]:
        """As `_expand`, with pictures brought to sizes that the user and the model take.

        Processors raise whatever their arithmetic meets.
        """
        processor = getattr(self._multimodal, "image_processor", None)
        images, options = limited(processor, images, pixels)
        try:
            return self._expand(rendered, images, literal, options), []
        except Exception as error:
            images, notices = repaired(processor, images, options)
            if not notices:
                raise _refusal(error) from error
        try:
            return self._expand(rendered, images, literal, options), notices
        except Exception as error:
            raise _refusal(error) from error

    def _expand(
        self, rendered: str, images: list[Image.Image], literal: bool, options: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Expand, tokenise, and turn pictures into tensors; keys as transformers names them."""
        tokenizer = self._literal_tokenizer if literal else self.tokenizer
        special = self._adds_special_tokens(rendered)
        if self._multimodal is None:
            encoded = tokenizer(rendered, add_special_tokens=special, return_tensors="pt")
            return {name: encoded[name] for name in ("input_ids", "attention_mask")}
        processor = copy.copy(self._multimodal)
        processor.tokenizer = tokenizer
        encoded = processor(
            text=rendered,
            images=[images] if images else None,
            add_special_tokens=special,
            return_tensors="pt",
            **options,
        )
        return dict(encoded)

    def _adds_special_tokens(self, rendered: str) -> bool:
        """Whether the tokenizer frames the text; the rule is that of `apply_chat_template`."""
        if self._template is None:
            return True
        if self._template == self._family.layout:
            return False
        begin = self.tokenizer.bos_token
        return self._multimodal is not None and not (begin and rendered.startswith(begin))

    @cached_property
    def _literal_tokenizer(self) -> LiteralTokenizer:
        return LiteralTokenizer(self.tokenizer, self._control)


def _chat_template(processor: Processor) -> str | None:
    """The source of the chat template; the processor's goes before the tokenizer's."""
    template = getattr(processor.multimodal, "chat_template", None)
    template = template or processor.tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def _refusal(error: Exception) -> PromptError:
    return PromptError(f"the model's processor refuses the prompt: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
