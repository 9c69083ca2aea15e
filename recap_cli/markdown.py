"""Markdown that arrives bit by bit, rendered for the terminal on stdout block by block.

What was shown is never redrawn, so a block waits until the next one begins; an item of a list is a
block, too. Links are shown with their address, and HTML as the text that it is.
"""

import re
import sys

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
# A line of which this much is there has shown whether it begins a block.
_TELLING = re.compile(r".*\n|\s*\S+\s+\S")
_LISTS = ("bullet_list_open", "ordered_list_open")


class MarkdownStream:
    """One answer on its way to the terminal."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout)
        self._pending = ""
        self._gap = ""

    def feed(self, text: str) -> str:
        """Take more of the answer; what can be shown now, with escapes, ending with a line."""
        self._pending += text
        shown = ""
        while cut := _first_cut(self._pending):
            shown += self._render(*cut)
        return shown

    def finish(self) -> str:
        """The rest of the answer."""
        return self._render(len(self._pending), "")

    def _render(self, end: int, gap: str) -> str:
        """Render `_pending` up to `end`; `gap` is what stands before the block after it."""
        block, self._pending = self._pending[:end], self._pending[end:]
        if not block.strip():
            return ""
        markdown = Markdown("", hyperlinks=False)
        markdown.parsed = _PARSER.parse(block)
        with self._console.capture() as captured:
            self._console.print(markdown)
        before, self._gap = self._gap, gap
        return before + captured.get().strip("\n") + "\n"


def _first_cut(text: str) -> tuple[int, str] | None:
    """Where the first block of `text` ends, if another has begun, and what stands between them."""
    lines = text.splitlines(keepends=True)
    if lines and not _TELLING.match(lines[-1]):
        lines.pop()
    tokens = _PARSER.parse("".join(lines))
    starts = [token.map[0] for token in tokens if token.map and token.level == 0]
    items = _first_items(tokens)
    if len(items) > 1:
        return len("".join(lines[: items[1]])), ""
    if len(starts) > 1:
        return len("".join(lines[: starts[1]])), "\n"
    return None


def _first_items(tokens: list[Token]) -> list[int]:
    """First lines of the items of the list with which a text begins, if it does."""
    if not tokens or tokens[0].type not in _LISTS:
        return []
    closing = next(n for n, token in enumerate(tokens) if n and token.level == 0)
    return [
        token.map[0]
        for token in tokens[:closing]
        if token.map and token.level == 1 and token.type == "list_item_open"
    ]
