"""Text comes in whole characters, nothing twice, nothing lost, and ends before a stop string."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.text import REPLACEMENT, AnswerText, TextStream
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


@BOTH
def test_a_replacement_character_that_the_model_wrote_comes_at_once(tokenizer: Any) -> None:
    ids = tokenizer.encode(f"x {REPLACEMENT}", add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids)[:-1]) == decoded(tokenizer, ids)


# Stop strings


def answered(
    tokenizer: Any, ids: list[int], stops: list[str], block: int = 1
) -> tuple[list[str], int]:
    """What is given out block by block, and of how many tokens the answer is made."""
    text = AnswerText(tokenizer, stops)
    given_out: list[str] = []
    used = 0
    for start in range(0, len(ids), block):
        for token in ids[start : start + block]:
            used += 1
            if text.ends(token):
                break
        given_out.append(text.feed(ids[start:used]))
        if text.ended:
            break
    given_out.append(text.finish())
    assert "".join(given_out) == text.whole()
    return given_out, used


@BOTH
@pytest.mark.parametrize(
    ("saying", "stops", "text"),
    [
        ("a circle, a square", [", "], "a circle"),
        ("a circle, a square", ["x"], "a circle, a square"),
        ("aaab", ["aab"], "a"),
        ("one two", ["two three"], "one two"),
        ("one two three", ["three", "two"], "one "),
        ("abcd", ["abcd", "bc"], "a"),
        ("abcd", ["bcd", "cd"], "a"),
        ("circle 👍🏽 square", ["👍🏽"], "circle "),
        ("stop", ["stop"], ""),
        ("a\n\nb", ["\n\n"], "a"),
    ],
)
def test_an_answer_ends_before_the_stop_string_that_is_complete_first(
    tokenizer: Any, saying: str, stops: list[str], text: str
) -> None:
    ids = tokenizer.encode(saying, add_special_tokens=False)
    for block in (1, 2, 3, len(ids)):
        given_out, used = answered(tokenizer, ids, stops, block)
        assert "".join(given_out).strip() == text.strip()
        before = decoded(tokenizer, ids[: used - 1])
        assert not any(stop in before for stop in stops), "no token behind the one that ends it"


def test_the_beginning_of_a_stop_string_waits_until_it_is_none() -> None:
    ids = BYTE_LEVEL.encode("x END y END", add_special_tokens=False)
    given_out, _ = answered(BYTE_LEVEL, ids, ["ENDING"])
    assert "".join(given_out) == "x END y END"
    assert given_out[-1] == "END", "given out only when nothing more comes"
    assert all(not piece.endswith("E") for piece in given_out)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
def test_stop_strings_are_found_as_a_search_finds_them(text: str, stops: list[str]) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(found)[1]] if found else text
    for block in (1, 3):
        given_out, _ = answered(BYTE_LEVEL, ids, stops, block)
        assert "".join(given_out) == expected
