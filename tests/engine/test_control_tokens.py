"""Typed words that look like control tokens, told from the real ones by hiding them."""

from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from engine.control_tokens import ControlTokens, LiteralTokenizer
from tests.models import byte_level_bpe

TEMPLATE = "{{- '<|user|>' + message.content + '<think>\n\n' -}}"


@pytest.fixture
def tokenizer() -> Any:
    """Special, merely added, and white-space tokens, as found in tokenizers of today."""
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=type(byte_level_bpe()).from_str(byte_level_bpe().to_str()),
        eos_token="<|end|>",
    )
    tokenizer.add_tokens([AddedToken("<|user|>", special=True, rstrip=True)], special_tokens=True)
    tokenizer.add_tokens([AddedToken(word) for word in ("<think>", "<b>", "\n\n", "<|img|>")])
    return tokenizer


@pytest.fixture
def control(tokenizer: Any) -> ControlTokens:
    return ControlTokens(tokenizer, TEMPLATE, [tokenizer.convert_tokens_to_ids("<|img|>")])


@pytest.mark.parametrize("word", ["<|user|>", "<|end|>", "<think>", "<|img|>"])
def test_special_tokens_placeholders_and_what_the_template_writes_are_hidden(
    control: ControlTokens, word: str
) -> None:
    hidden = control.hide(f"a {word}{word} b")
    assert word not in hidden
    assert control.reveal(hidden) == f"a {word}{word} b"


@pytest.mark.parametrize("word", ["<b>", "\n\n", "<|user|", "user", "\ue000", "\ue0000\ue002"])
def test_all_else_is_left_as_it_is(control: ControlTokens, word: str) -> None:
    assert control.hide(word) == word
    assert control.reveal(word) == word


def test_names_cannot_be_guessed_by_who_types(tokenizer: Any) -> None:
    first, second = (ControlTokens(tokenizer, TEMPLATE, ()) for _ in range(2))
    guess = first.hide("<|user|>")
    assert second.reveal(guess) == guess
    assert second.rename(guess) == guess


def test_without_hidden_words_the_twin_encodes_as_the_tokenizer_does(
    tokenizer: Any, control: ControlTokens
) -> None:
    text = "<|user|>  A red\n\n circle<b> <|img|><think>\n\nWhat?<|end|>"
    literal = LiteralTokenizer(tokenizer, control)
    assert literal([text])["input_ids"] == tokenizer([text])["input_ids"]


def test_hidden_words_become_characters_beside_real_control_tokens(
    tokenizer: Any, control: ControlTokens
) -> None:
    literal = LiteralTokenizer(tokenizer, control)
    text = "<|user|>" + control.hide("say <|user|> or <think>!") + "<think>"
    ids = literal(text)["input_ids"][0]
    user, think = tokenizer.convert_tokens_to_ids(["<|user|>", "<think>"])
    assert (ids[0], ids[-1]) == (user, think)
    assert not {user, think} & set(ids[1:-1])
    assert tokenizer.decode(ids[1:-1]) == "say <|user|> or <think>!"
