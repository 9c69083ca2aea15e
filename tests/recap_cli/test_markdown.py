"""Markdown that is shown block by block."""

import pytest

from recap_cli.markdown import MarkdownStream

ANSWER = """\
# A *title*

One line, <b>that</b> goes
on, with [a link](http://example.org).

1. one
2. two
   - nested
10. ten

```python
x = 1

y = 2
```

| a | b |
|---|---|
| 1 | 2 |
"""


@pytest.fixture(autouse=True)
def forty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def shown(stream: MarkdownStream, *parts: str) -> list[str]:
    """What each part adds, without blanks at the ends of lines, and what the end adds."""
    texts = [*map(stream.feed, parts), stream.finish()]
    return ["\n".join(map(str.rstrip, text.split("\n"))) for text in texts]


def test_a_block_is_shown_once_the_next_one_has_begun() -> None:
    parts = ["one ", "para", "graph\n", "\n", "an", "other one"]
    assert shown(MarkdownStream(), *parts) == [
        *[""] * 5,
        "one paragraph\n",
        "\nanother one\n",
    ]


def test_so_is_an_item_of_a_list() -> None:
    parts = ["- one\n", "- ", "two\n", "\nafter it"]
    assert shown(MarkdownStream(), *parts) == ["", "", " • one\n", " • two\n", "\nafter it\n"]


@pytest.mark.parametrize("size", [1, 7, len(ANSWER)])
def test_the_whole_is_the_same_however_it_arrives(size: int) -> None:
    parts = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    text = "".join(shown(MarkdownStream(), *parts))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert list(filter(lambda line: line.strip("─"), lines)) == [
        "A title",
        "One line, <b>that</b> goes on, with a",
        "link (http://example.org).",
        "1 one",
        "2 two",
        "• nested",
        "10 ten",
        "x = 1",
        "y = 2",
        "a b",
        "1 2",
    ]


def test_a_hash_that_becomes_a_word_is_no_title() -> None:
    assert shown(MarkdownStream(), "see\n#", "hash and more") == ["", "", "see #hash and more\n"]


def test_nothing_is_nothing() -> None:
    assert shown(MarkdownStream(), "", "\n\n") == ["", "", ""]
