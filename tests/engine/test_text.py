"""Text comes in whole characters, nothing twice, nothing lost, whatever the tokens are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.text import REPLACEMENT, TextStream
from tests.models import byte_fallback_bpe, byte_level_bpe


def wrapped(tokenizer: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", clean_up_tokenization_spaces=False
    )


BYTE_LEVEL, BYTE_FALLBACK = wrapped(byte_level_bpe()), wrapped(byte_fallback_bpe())
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])
SAYINGS = (
    "A red circle.",
    " é 👍🏽 中文",
    "👨‍👩‍👧",
    "a\n\nb  c",
    "  x",
    "literal \ufffd end",
    "é" * 5,
)


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    """What is given out token by token, and at the end."""
    stream = TextStream(tokenizer)
    return [*(stream.feed([token]) for token in ids), stream.finish()]


def decoded(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


@BOTH
@pytest.mark.parametrize("saying", SAYINGS)
def test_pieces_add_up_to_the_text_and_hold_whole_characters(tokenizer: Any, saying: str) -> None:
    ids = tokenizer.encode(saying, add_special_tokens=False)
    given_out = pieces(tokenizer, ids)
    assert "".join(given_out) == decoded(tokenizer, ids)
    assert all(REPLACEMENT not in piece for piece in given_out) or REPLACEMENT in saying


@BOTH
def test_a_character_comes_with_its_last_byte(tokenizer: Any) -> None:
    ids = tokenizer.encode("👍", add_special_tokens=False)
    assert len(ids) >= 4
    given_out = pieces(tokenizer, ids)
    assert [piece.strip() for piece in given_out] == [""] * (len(ids) - 1) + ["👍", ""]


@BOTH
def test_an_answer_that_ends_inside_a_character_says_so(tokenizer: Any) -> None:
    ids = tokenizer.encode("x 👍", add_special_tokens=False)[:-1]
    given_out = pieces(tokenizer, ids)
    assert REPLACEMENT in given_out[-1]
    assert "".join(given_out) == decoded(tokenizer, ids)


@BOTH
def test_special_tokens_are_not_text(tokenizer: Any) -> None:
    ids = tokenizer.encode("Yes.", add_special_tokens=False)
    with_end = [*ids, tokenizer.eos_token_id]
    assert "".join(pieces(tokenizer, with_end)) == "".join(pieces(tokenizer, ids))


@given(st.lists(st.integers(0, 255), max_size=30), st.data())
def test_any_bytes_in_any_blocks_come_out_as_they_decode(
    ids: list[int], data: st.DataObject
) -> None:
    stream, text = TextStream(BYTE_LEVEL), ""
    rest = ids
    while rest:
        size = data.draw(st.integers(1, 5))
        text += stream.feed(rest[:size])
        rest = rest[size:]
    text += stream.finish()
    assert text == decoded(BYTE_LEVEL, ids) == stream.whole()


@given(st.text(max_size=20), st.integers(1, 4))
def test_any_text_comes_out_as_it_decodes(text: str, block: int) -> None:
    for tokenizer in (BYTE_LEVEL, BYTE_FALLBACK):
        ids = tokenizer.encode(text, add_special_tokens=False)
        stream = TextStream(tokenizer)
        given_out = [stream.feed(ids[at : at + block]) for at in range(0, len(ids), block)]
        assert "".join(given_out) + stream.finish() == decoded(tokenizer, ids)
