"""Tables of text: they fit, cut nothing, steer nothing, and can be pasted."""

import io

import pytest

from recap_cli.grids import Grid, Report, draw, markdown

WIDE = Grid(
    "Wide",
    ("", *(f"column {name}" for name in "abcdef")),
    (("first", *"123456"), ("second one", *["1,000,000"] * 6)),
    ("A note that is longer than forty columns, so that it goes on below.",),
)


def drawn(*grids: Grid) -> list[str]:
    stream = io.StringIO()
    draw(Report(grids, "here and now"), stream)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_table_has_its_title_above_and_its_notes_below() -> None:
    assert drawn(Grid("Title", ("", "a head"), (("row", "1.00"), ("b", "-")), ("note",))) == [
        "Title",
        "        a",
        "     head",
        "─────────",
        "row  1.00",
        "b       -",
        "note",
        "",
        "here and now",
    ]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_nothing_is_wider_than_the_screen_nor_cut(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = drawn(WIDE)
    assert max(map(len, lines)) <= columns
    assert sum(line.count("1,000,000") for line in lines) == 6
    assert "…" not in "".join(lines)


def test_columns_that_do_not_fit_stand_below_with_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert [line.split()[1:] for line in drawn(WIDE) if line.startswith("first")] == [
        ["1", "2"],
        ["3", "4"],
        ["5", "6"],
    ]


def test_what_others_wrote_neither_steers_nor_styles() -> None:
    lines = drawn(Grid("[bold]T", ("", "a"), (("[red]\x1b[31mr:smile:", "x\ny"),), ("\x1b[0mn",)))
    assert lines[0] == "[bold]T"
    assert lines[3] == "[red][31mr:smile:  x y"
    assert lines[4] == "[0mn"


def test_markdown_is_a_table_with_figures_to_the_right() -> None:
    grid = Grid("Title", ("", "a", "b c"), (("one", "1", "2"), ("two", "-", "4")), ("A note.",))
    assert markdown(Report((grid,), "here")) == (
        "**Title**\n"
        "\n"
        "|  | a | b c |\n"
        "|---|--:|--:|\n"
        "| one | 1 | 2 |\n"
        "| two | - | 4 |\n"
        "\n"
        "A note.\n"
        "\n"
        "here\n"
    )


def test_markup_is_text_in_markdown() -> None:
    grid = Grid("T", ("",), (), ("<|image_pad|> `x` a*b*",))
    assert r"\<\|image_pad\|> \`x\` a\*b\*" in markdown(Report((grid,), ""))
