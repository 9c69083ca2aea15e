"""What reaches a terminal, and where the cursor is after it."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from recap_cli.terminal import LiveLine, one_line, printable, utf8
from tests.recap_cli.screen import Screen

COLUMNS, ROWS = 10, 4


class Shared(io.StringIO):
    """A terminal that remembers nothing but its screen."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = Screen(COLUMNS, ROWS)

    def write(self, text: str) -> int:
        self.screen.feed(text.replace("\n", "\r\n"))
        return len(text)


@pytest.mark.parametrize(
    "chunks",
    [
        ["short"],
        ["exactly te", "n, then on"],
        ["0123456789", "0123456789", "\n", "x"],
        ["one\ntwo\n", "\n", "four"],
        ["many", " words", " that", " scroll", " off", " the", " screen", " at", " its", " end"],
    ],
)
def test_text_is_whole_whatever_the_live_line_does(chunks: list[str]) -> None:
    alone, shared = Shared(), Shared()
    line = LiveLine(Console(file=shared, width=COLUMNS, force_terminal=True))
    rendered = line.render(Text("figures that are too long"))
    for chunk in chunks:
        line.give_way(chunk)
        line.follow(chunk)
        shared.write(chunk)
        alone.write(chunk)
        if "\n" in chunk:
            assert shared.screen.text == alone.screen.text
        line.draw(rendered)
    shown = shared.screen.text
    assert "figures …" in shown or len(chunks[-1]) == COLUMNS
    line.erase()
    # Room for the line may have scrolled the text; nothing else may differ.
    assert shared.screen.text == alone.screen.text


@pytest.mark.parametrize(
    ("text", "column"), [("ab", 2), ("日本語日本", 10), ("日本語日本語", 2), ("a\tb", 9)]
)
def test_the_line_stays_away_while_the_cursor_waits_at_the_edge(text: str, column: int) -> None:
    file = io.StringIO()
    line = LiveLine(Console(file=file, width=COLUMNS, force_terminal=True))
    line.follow(text)
    line.draw("figures")
    assert ("figures" in file.getvalue()) is (column < COLUMNS)


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[31m\x07\x9bb\r\n\tc\x7f") == "a[31mb\n\tc"


def test_an_error_is_one_line() -> None:
    assert one_line("first\n  second\x1b[2J ") == "first second[2J"


def test_file_names_that_are_no_text_can_be_written() -> None:
    assert utf8("caf\udce9.png") == "caf?.png"
