"""How entries of a conversation are spelt."""

import pytest

from recap_cli.chat_entries import Instruction, instruction, is_open, message


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("/help", Instruction("help", "")),
        ("  /image  a.png b.png ", Instruction("image", "a.png b.png")),
        ("/system one\ntwo", Instruction("system", "one\ntwo")),
        ("/hlep!", Instruction("hlep!", "")),
        ("/", Instruction("", "")),
    ],
)
def test_a_slash_begins_a_command(entry: str, found: Instruction) -> None:
    assert instruction(entry) == found


@pytest.mark.parametrize(
    "entry",
    ["hello", "either / or", "/home/me/cat.png", "/tmp/a b.png what is this?", '"""/help"""'],
)
def test_other_entries_are_messages(entry: str) -> None:
    """Paths that were dragged into the terminal among them."""
    assert instruction(entry) is None


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("  hello there ", "hello there"),
        ('"""/help"""', "/help"),
        ('"""\n  one\n\ntwo\n"""', "  one\n\ntwo"),
        ('"""', '"""'),
        ('say """this"""', 'say """this"""'),
        ('"""A docstring."""\nx = 1', '"""A docstring."""\nx = 1'),
        ("pasted\nlines", "pasted\nlines"),
    ],
)
def test_a_message_sheds_its_quotes(entry: str, text: str) -> None:
    assert message(entry) == text


@pytest.mark.parametrize("entry", ['"""', '"""one', ' """one\ntwo"'])
def test_open_quotes_ask_for_more_lines(entry: str) -> None:
    assert is_open(entry)


@pytest.mark.parametrize(
    "entry", ["one", '"""one"""', '"""one""" two', '"""\n"""', '""""""', 'say """']
)
def test_other_entries_are_whole(entry: str) -> None:
    assert not is_open(entry)
