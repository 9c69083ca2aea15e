"""The demo model's tokenizer, template and processor behave like Qwen2.5-VL's."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2Tokenizer

from engine.demo.build import IMAGE_TOKENS, SPECIAL_TOKENS, new_image_processor, new_tokenizer
from engine.demo.questions import conversation
from engine.demo.scenes import imagine_scene

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return new_tokenizer()


def test_special_tokens_are_one_id_each(tokenizer: Qwen2Tokenizer) -> None:
    assert all(len(tokenizer.encode(token)) == 1 for token in SPECIAL_TOKENS)
    assert tokenizer.eos_token == "<|im_end|>"


def test_words_about_scenes_are_one_token_each(tokenizer: Qwen2Tokenizer) -> None:
    sentence = " large small red orange triangle star background corner shapes picture"
    assert len(tokenizer.encode(sentence)) == sentence.count(" ")


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_comes_back_as_its_composed_form(tokenizer: Qwen2Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_the_template_adds_the_system_turn_and_marks_pictures(tokenizer: Qwen2Tokenizer) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "describe"}]},
        {"role": "assistant", "content": "A star."},
        {"role": "user", "content": "Where?"},
    ]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{PICTURE}describe<|im_end|>\n"
        "<|im_start|>assistant\nA star.<|im_end|>\n"
        "<|im_start|>user\nWhere?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_template_takes_a_system_turn(tokenizer: Qwen2Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


@pytest.mark.parametrize("side", [28, 64, 84, 168, 233, 320, 1000])
def test_square_pictures_become_nine_tokens(side: int) -> None:
    seen = new_image_processor()(Image.new("RGB", (side, side)), return_tensors="pt")
    assert int(seen["image_grid_thw"].prod()) // 4 == IMAGE_TOKENS


def test_conversations_fit_the_context(tokenizer: Qwen2Tokenizer) -> None:
    turns = [turn for seed in range(50) for turn in conversation(imagine_scene(seed, 5), seed)]
    assert max(len(tokenizer.encode(turn.answer)) for turn in turns) < 160
