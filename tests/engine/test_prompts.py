"""What a model reads: its own ids for every prompt; what looks like a control token is text."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AddedToken, AutoConfig, PaliGemmaProcessor, ProcessorMixin

from engine.errors import ImageError, PromptError
from engine.families import FAMILIES, Family, family_of
from engine.processors import Processor, load_processor
from engine.prompts import Message, PromptEncoder
from tests import models
from tests.models import ODD_SIZES, picture
from tests.zoo import Zoo

VISION = tuple(sorted(name for name, family in FAMILIES.items() if family.vision))
TEXT = tuple(sorted(set(FAMILIES) - set(VISION)))
EVERY_FAMILY = pytest.mark.parametrize("family", [*VISION, *TEXT])
EVERY_VISION_FAMILY = pytest.mark.parametrize("family", VISION)


class Model:
    """A tiny model's processor, and what transformers itself makes of a conversation."""

    def __init__(self, folder: Path) -> None:
        self.config = AutoConfig.from_pretrained(folder)
        self.family: Family = family_of(self.config)
        self.processor: Processor = load_processor(folder, self.family)

    def encoder(self, chat_template: str | None = "the family's") -> PromptEncoder:
        """An encoder, with another chat template or with none."""
        if chat_template != "the family's":
            self.processor.tokenizer.chat_template = chat_template
            if self.processor.multimodal is not None:
                self.processor.multimodal.chat_template = chat_template
        return PromptEncoder(self.processor, self.family, self.config)

    def own_encoding(self, messages: list[Message]) -> dict[str, Tensor]:
        """By the model's own `apply_chat_template`, which expands placeholders and tokenises."""
        if self.family.layout:
            return self._own_prefix(messages)
        own: Any = self.processor.multimodal or self.processor.tokenizer
        # SmolVLM's first asks its video processor, which needs torchvision.
        apply = (
            ProcessorMixin.apply_chat_template
            if self.family.vision
            else type(own).apply_chat_template
        )
        conversation = [
            {"role": message.role, "content": self._own_content(message)} for message in messages
        ]
        return dict(
            apply(
                own,
                conversation,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        )

    def _own_prefix(self, messages: list[Message]) -> dict[str, Tensor]:
        """By a processor that knows one text behind its pictures, and wants at least one."""
        ours: Any = self.processor.multimodal
        own = PaliGemmaProcessor(ours.image_processor, ours.tokenizer)
        images = [image for message in messages for image in message.images]
        text = "\n\n".join(message.text for message in messages)
        if not images:
            ids = own.tokenizer(f"{own.tokenizer.bos_token}{text}\n", return_tensors="pt")
            return {**ids, "token_type_ids": torch.zeros_like(ids["input_ids"])}
        encoded = own(text="<image>" * len(images) + text, images=[images], return_tensors="np")
        return {name: torch.as_tensor(encoded[name]) for name in encoded if name != "labels"}

    def _own_content(self, message: Message) -> object:
        if not self.family.vision:
            return message.text
        images = [{"type": "image", "image": image} for image in message.images]
        return [*images, {"type": "text", "text": message.text}]


@pytest.fixture
def model(zoo: Zoo, family: str) -> Model:
    return Model(zoo.folder_of(family, None))


PIECES = (
    *"aZ09 \n\t.,;:!?()[]{}<>|/\\'\"#*_-=+~`@$%^&",
    *("  ", "\n\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\ufeff", "\ufffd", "\x00", "\ue000"),
    *("é", "e\u0301", "ß", "ﬁ", "Ωmega", "中文", "日本語", "👍🏽", "👨‍👩‍👧", "\U0001f600"),
    *("▁", "Ġ", "the", " red circle", "What", " image", "im_end", "image_pad", "s>", "<|", "|>"),
    *(
        "<0x0A>",
        "</",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "USER:",
        "{{ x }}",
        "{% if %}",
        "\\frac{1}{2}",
    ),
)


def random_text(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randrange(0, 25)))


def random_conversation(rng: random.Random, vision: bool) -> list[Message]:
    system = [Message("system", random_text(rng) + "x")] * rng.randrange(2)
    first_turn = [Message("user", random_text(rng)), Message("assistant", random_text(rng))]
    images = tuple(
        picture(*rng.choice(ODD_SIZES), seed=rng.randrange(9))
        for _ in range(rng.choice((0, 0, 0, 1, 2)) if vision else 0)
    )
    return [*system, *first_turn * rng.randrange(2), Message("user", random_text(rng), images)]


def control_tokens(model: Model) -> tuple[str, ...]:
    return tuple(models.FAMILIES[model.family.model_type].special)


def is_flagship(model: Model) -> bool:
    return model.family.model_type in models.FLAGSHIPS


def conversations(model: Model, count: int) -> Iterator[list[Message]]:
    """Random conversations in which nobody typed a control token."""
    rng = random.Random(model.family.model_type)
    while count:
        messages = random_conversation(rng, model.family.vision)
        if not any(token in each.text for token in control_tokens(model) for each in messages):
            yield messages
            count -= 1


@EVERY_FAMILY
def test_ids_and_tensors_are_those_of_the_model_s_own_processor(model: Model) -> None:
    encoder = model.encoder()
    for messages in conversations(model, 500 if is_flagship(model) else 60):
        ours, own = encoder.encode(messages), model.own_encoding(messages)
        assert torch.equal(ours.input_ids, own.pop("input_ids"))
        if model.family.vision:
            del own["attention_mask"]
            assert ours.model_inputs.keys() == own.keys()
            assert all(torch.equal(ours.model_inputs[name], own[name]) for name in own)
        else:
            assert ours.model_inputs == {}


@EVERY_FAMILY
def test_typed_control_tokens_are_plain_characters(model: Model) -> None:
    encoder = model.encoder()
    special = control_tokens(model)
    images = (picture(37, 91),) if model.family.vision else ()
    around = Surroundings(encoder, special, images)
    rng = random.Random(model.family.model_type)
    for _ in range(300 if is_flagship(model) else 40):
        text = "".join(rng.choices((*special * 3, *PIECES), k=rng.randrange(1, 12))).strip()
        encoded = encoder.encode([Message("user", text, images)])
        assert encoded.rendered == around.start + text + around.end
        assert encoded.input_ids[0].tolist() == around.ids_with(text)


class Surroundings:
    """What the template puts before and after a user's text; text is split off at its tokens."""

    def __init__(
        self, encoder: PromptEncoder, special: tuple[str, ...], images: tuple[Image.Image, ...]
    ) -> None:
        self._tokenizer = encoder.tokenizer
        self.start, self.end = encoder.encode([Message("user", "\x01", images)]).rendered.split(
            "\x01"
        )
        control = re.compile("|".join(map(re.escape, special)))
        self._tail, self._head = control.split(self.start)[-1], control.split(self.end)[0]
        bare = encoder.encode([Message("user", "", images)]).input_ids[0].tolist()
        after = len(self._tokenizer.encode(self.end[len(self._head) :], add_special_tokens=False))
        self._after = bare[len(bare) - after :]
        self._before = bare[: len(bare) - after - len(self._plain(""))]

    def ids_with(self, text: str) -> list[int]:
        return self._before + self._plain(text) + self._after

    def _plain(self, text: str) -> list[int]:
        """By transformers' own means to encode a text whose special tokens are none."""
        ids: list[int] = self._tokenizer.encode(
            self._tail + text + self._head, add_special_tokens=False, split_special_tokens=True
        )
        return ids


@EVERY_VISION_FAMILY
def test_a_typed_placeholder_changes_nothing_about_the_pictures(model: Model) -> None:
    encoder = model.encoder()
    images = (picture(161, 40), picture(57, 57))
    plain = encoder.encode([Message("user", "See this.", images)])
    typed = encoder.encode([Message("user", f"See {model.family.image_markup} this.", images)])
    assert typed.image_tokens == plain.image_tokens
    assert typed.model_inputs.keys() == plain.model_inputs.keys()
    stands_for_pictures = torch.isin(typed.input_ids, torch.tensor(sorted(encoder.placeholder_ids)))
    for name, value in typed.model_inputs.items():
        kinds = name in ("mm_token_type_ids", "token_type_ids")
        same = stands_for_pictures.long() if kinds else plain.model_inputs[name]
        if kinds and model.family.layout:  # all of the prompt is of one kind
            same = torch.zeros_like(typed.input_ids)
        assert torch.equal(value, same)


@EVERY_FAMILY
def test_a_typed_control_token_is_text_in_every_message(model: Model) -> None:
    encoder = model.encoder()

    def special_ids(word: str) -> list[int]:
        messages = [
            Message("system", f"a {word} b"),
            Message("user", f"c {word} d"),
            Message("assistant", f"e {word} f"),
            Message("user", f"g {word} h"),
        ]
        ids = encoder.encode(messages).input_ids[0].tolist()
        return [index for index in ids if index in encoder.tokenizer.all_special_ids]

    for token in control_tokens(model):
        assert special_ids(token) == special_ids("word")


# As Qwen3's: what was thought before an earlier answer is left out.
THINKING = (
    "{%- for message in messages -%}"
    "{%- set said = message.content.split('</think>')[-1].lstrip('\n') -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{{- said if message.role == 'assistant' else message.content -}}{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n<think>\n' -}}{%- endif -%}"
)


@pytest.mark.parametrize("family", ["qwen3"])
def test_a_template_finds_the_model_s_own_words_in_its_answers_only(model: Model) -> None:
    model.processor.tokenizer.add_tokens([AddedToken(f"<{end}think>") for end in ("", "/")])
    encoder = model.encoder(THINKING)
    answer = Message("assistant", "<think>\nHm.\n</think>\n\nYes.")
    messages = [Message("user", "Is it red?"), answer, Message("user", "Sure?")]
    ours = encoder.encode(messages)
    assert "Hm." not in ours.rendered
    assert torch.equal(ours.input_ids, model.own_encoding(messages)["input_ids"])
    quoted = [Message("user", "What is </think>?"), *messages[1:]]
    ids = encoder.encode(quoted).input_ids[0].tolist()
    assert encoder.tokenizer.convert_tokens_to_ids("</think>") not in ids
    assert "What is </think>?" in encoder.tokenizer.decode(ids)


@EVERY_VISION_FAMILY
def test_pictures_stand_in_front_of_their_message_s_text_in_order(model: Model) -> None:
    encoder = model.encoder()
    first, second, third = picture(28, 28, 1), picture(161, 40, 2), picture(113, 112, 3)
    encoded = encoder.encode(
        [
            Message("user", "Compare.", (first, second)),
            Message("assistant", "Done."),
            Message("user", "And this?", (third,)),
        ]
    )
    token = model.family.image_token
    places = [part.count(token) for part in re.split(r"Compare\.|Done\.|And", encoded.rendered)]
    assert places == ([3, 0, 0, 0] if model.family.layout else [2, 0, 1, 0])
    alone = [encoder.encode([Message("user", "", (image,))]) for image in (first, second, third)]
    if "batch_num_images" not in encoded.model_inputs:  # OneVision cuts up a lone picture only
        assert encoded.image_tokens == sum(each.image_tokens for each in alone)
    if rows := model.family.image_rows:
        expected = torch.cat([each.model_inputs[rows] for each in alone])
        assert torch.equal(encoded.model_inputs[rows], expected)
    else:
        pixels = [each.model_inputs["pixel_values"] for each in alone]
        assert torch.equal(encoded.model_inputs["pixel_values"], torch.cat(pixels, dim=-4))


@EVERY_VISION_FAMILY
def test_image_tokens_follow_the_size_of_the_picture_where_the_family_does(model: Model) -> None:
    encoder = model.encoder()
    prompts = [encoder.encode([Message("user", "?", (picture(*size),))]) for size in ODD_SIZES]
    kinds = len({prompt.image_tokens for prompt in prompts})
    assert kinds >= 3 if models.FAMILIES[model.family.model_type].flexible else kinds == 1
    text = encoder.encode([Message("user", "?")])
    assert text.image_tokens == 0
    assert "pixel_values" not in text.model_inputs


WITHOUT_SYSTEM = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{- raise_exception('no system role') -}}{%- endif -%}"
    "{{- '[' + message.role + ']' + message.content -}}"
    "{%- endfor -%}"
)
IGNORING_SYSTEM = (
    "{%- for message in messages if message.role != 'system' -%}"
    "{{- '[' + message.role + ']' + message.content -}}"
    "{%- endfor -%}"
)


@pytest.mark.parametrize("family", ["qwen2"])
@pytest.mark.parametrize("template", [WITHOUT_SYSTEM, IGNORING_SYSTEM])
def test_a_system_message_that_the_template_does_not_take_goes_before_the_first_question(
    model: Model, template: str
) -> None:
    encoder = model.encoder(template)
    encoded = encoder.encode([Message("system", "Be brief."), Message("user", "Why?")])
    assert encoded.rendered == "[user]Be brief.\n\nWhy?"


@pytest.mark.parametrize("family", ["llama"])
def test_a_text_model_without_a_template_reads_plain_text(model: Model) -> None:
    encoder = model.encoder(None)
    encoded = encoder.encode([Message("system", "Be brief."), Message("user", "Why?")])
    assert encoded.rendered == "Be brief.\n\nWhy?"
    assert encoded.input_ids[0].tolist() == encoder.tokenizer.encode("Be brief.\n\nWhy?")
    assert encoded.input_ids[0, 0] == encoder.tokenizer.bos_token_id


@pytest.mark.parametrize("family", [name for name in VISION if not FAMILIES[name].layout])
def test_a_vision_model_without_a_template_gets_its_pictures_before_the_text(model: Model) -> None:
    images = (picture(28, 28), picture(57, 57), picture(37, 91))
    encoded = model.encoder(None).encode([Message("user", "Same?", images)])
    assert encoded.rendered == model.family.image_markup * 3 + "Same?"
    fewer = model.encoder(None).encode([Message("user", "Same?", images[:2])])
    assert encoded.image_tokens > fewer.image_tokens > 0


@pytest.mark.parametrize("family", ["paligemma", "paligemma2"])
def test_a_family_without_templates_gets_pictures_begin_token_text_and_newline(
    model: Model,
) -> None:
    encoder = model.encoder()
    assert encoder.encode([Message("user", "cap en")]).rendered == "<bos>cap en\n"
    images = (picture(28, 28), picture(57, 57))
    encoded = encoder.encode([Message("system", "Be brief."), Message("user", "<image>?", images)])
    assert encoded.rendered == "<image><image><bos>Be brief.\n\n<image>?\n"
    assert encoded.image_tokens == 32
    assert not encoded.model_inputs["token_type_ids"].any(), "all of it is prefix"


@pytest.mark.parametrize("family", ["qwen2"])
def test_a_template_that_refuses_a_conversation_is_an_error_in_one_line(model: Model) -> None:
    encoder = model.encoder("{{- raise_exception('roles must\nalternate') -}}")
    with pytest.raises(PromptError, match="refuses this conversation: roles must alternate"):
        encoder.encode([Message("user", "Why?")])


@EVERY_VISION_FAMILY
def test_a_picture_that_the_template_leaves_out_is_an_error(model: Model) -> None:
    encoder = model.encoder("{%- for m in messages -%}{{- m.content[-1].text -}}{%- endfor -%}")
    assert encoder.encode([Message("user", "Why?")]).image_tokens == 0
    with pytest.raises(ImageError, match="place for 0 pictures, but 1 were given"):
        encoder.encode([Message("user", "Why?", (picture(28, 28),))])


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_a_picture_that_the_processor_loses_is_an_error(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    multimodal: Any = model.processor.multimodal
    real = type(multimodal).__call__

    def losing(*args: Any, **kwargs: Any) -> Any:
        outputs = real(*args, **kwargs)
        outputs["image_grid_thw"] = outputs["image_grid_thw"][:-1]
        return outputs

    monkeypatch.setattr(type(multimodal), "__call__", losing)
    with pytest.raises(ImageError, match="returned 1 pictures, but 2 were given"):
        model.encoder().encode([Message("user", "", (picture(28, 28), picture(57, 57)))])


@pytest.mark.parametrize("family", TEXT)
def test_a_text_model_says_that_it_cannot_look_at_pictures(model: Model) -> None:
    with pytest.raises(PromptError, match="only read text: choose a vision model"):
        model.encoder().encode([Message("user", "?", (picture(28, 28),))])


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "must end with a message of the user"),
        ([Message("user", "?"), Message("assistant", "!")], "must end with a message of the user"),
        (
            [Message("system", "", (picture(28, 28),)), Message("user", "?")],
            "pictures belong to the user's messages",
        ),
        ([Message("user", "caf\udce9")], "not valid UTF-8"),
    ],
)
def test_impossible_conversations_are_refused(
    model: Model, messages: list[Message], reason: str
) -> None:
    with pytest.raises(PromptError, match=reason):
        model.encoder().encode(messages)


@EVERY_FAMILY
def test_what_a_refused_prompt_left_behind_does_not_change_the_next(model: Model) -> None:
    encoder = model.encoder()
    before = encoder.encode([Message("user", "Why?")])
    typed = encoder.encode([Message("user", f"Why? {control_tokens(model)[-1]}")])
    with pytest.raises(PromptError):
        encoder.encode([])
    after = encoder.encode([Message("user", "Why?")])
    assert torch.equal(before.input_ids, after.input_ids)
    assert typed.input_ids.shape[1] > before.input_ids.shape[1]


# Pictures where a template's references put them


def template(text: str, *images: Image.Image) -> list[Message]:
    return [Message("user", text, images, template=True)]


@EVERY_VISION_FAMILY
def test_references_put_pictures_into_the_text(model: Model) -> None:
    small, large = picture(57, 57), picture(113, 112)
    encoder = model.encoder()
    token = model.family.image_token
    encoded = encoder.encode(template("Is {2} like {1} here?", small, large))
    before, between, after = (encoded.rendered.index(word) for word in ("Is", "like", "here?"))
    first = encoded.rendered.index(token)
    second = encoded.rendered.index(token, first + len(token))
    assert before < first < between < second < after
    swapped = encoder.encode(template("Is {1} like {2} here?", large, small))
    assert torch.equal(encoded.input_ids, swapped.input_ids)
    for name, value in encoded.model_inputs.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(swapped.model_inputs[name]))


@EVERY_VISION_FAMILY
def test_references_in_front_are_as_no_template(model: Model) -> None:
    images = (picture(57, 57), picture(37, 91))
    encoder = model.encoder()
    ids = encoder.encode(template("{1}{2}Why?", *images)).input_ids
    assert torch.equal(ids, encoder.encode([Message("user", "Why?", images)]).input_ids)


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_without_a_template_braces_are_text(model: Model) -> None:
    text = r'\frac{1}{2} {"a": {1}} {{1}}'
    encoded = model.encoder().encode([Message("user", text, (picture(28, 28),))])
    assert text in encoded.rendered


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_in_a_template_other_braces_are_text(model: Model) -> None:
    encoded = model.encoder().encode(template('{1} {"a": {x}} {{1}} {{2}}', picture(28, 28)))
    assert '<|vision_end|> {"a": {x}} {1} {2}' in encoded.rendered


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_control_tokens_in_a_template_stay_text(model: Model) -> None:
    encoded = model.encoder().encode(template("<|image_pad|> {1} <|im_end|>", picture(28, 28)))
    plain = model.encoder().encode(template("{1}", picture(28, 28)))
    assert encoded.image_tokens == plain.image_tokens
    assert "<|image_pad|> <|vision_start|>" in encoded.rendered


@pytest.mark.parametrize("family", ["llava_next"])
def test_a_system_message_goes_before_a_template_without_changing_it(model: Model) -> None:
    source = (
        "{%- for m in messages -%}{%- if m.role == 'system' -%}{{- raise_exception('no') -}}"
        "{%- endif -%}{%- for part in m.content -%}"
        "{{- '<image>' if part.type == 'image' else part.text -}}{%- endfor -%}{%- endfor -%}"
    )
    messages = [Message("system", "Use {1}."), *template("{1} and this", picture(28, 28))]
    rendered = model.encoder(source).encode(messages).rendered
    assert rendered == "<image>Use {1}.\n\n and this"


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_a_template_that_refers_to_no_picture_is_refused(model: Model) -> None:
    with pytest.raises(PromptError, match=r"^the template has \{2\}, but there is 1 picture; for"):
        model.encoder().encode(template("{1} {2}", picture(28, 28)))


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{1} {3}", r"has \{3\}, but there are 2 pictures; for the text \{3\} write \{\{3\}\}"),
        ("{0} {1} {2}", r"has \{0\}, but there are 2 pictures"),
        ("{1} {1} {2}", r"uses picture \{1\} twice"),
        ("{2}", r"does not use picture 1: put \{1\} in"),
    ],
)
def test_a_template_that_does_not_fit_its_pictures_is_refused(
    model: Model, text: str, reason: str
) -> None:
    with pytest.raises(PromptError, match=reason):
        model.encoder().encode(template(text, picture(28, 28), picture(57, 57)))
