"""Just enough of a terminal to see what a person would see."""

import re

_ESCAPE = re.compile(r"\x1b(?:\[(\?)?(\d*)((?:;\d+)*)([A-Za-z])|([78D]))")
_MOVES = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}  # rows and columns


class Screen:
    """Rows of text that scroll; knows the escapes that recap may use and refuses all others."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self._rows = columns, rows
        self._lines = [[" "] * columns for _ in range(rows)]
        self._above: list[str] = []
        self._row = self._column = 0
        self._wraps = False
        self._saved = (0, 0)

    @property
    def text(self) -> str:
        """Everything that is or was on the screen, without blanks at the ends of lines."""
        lines = [*self._above, *("".join(line).rstrip() for line in self._lines)]
        return "\n".join(lines).rstrip()

    def resize(self, columns: int, rows: int) -> None:
        """Change the size as xterm does: lines are cut or filled up, never wrapped anew."""
        below = len(self._lines) - 1 - self._row
        lines = [(line + [" "] * columns)[:columns] for line in self._lines]
        gone = max(0, len(lines) - rows - below)
        self._above += ["".join(line).rstrip() for line in lines[:gone]]
        self._lines = [*lines[gone:], *([" "] * columns for _ in range(rows))][:rows]
        self.columns, self._rows = columns, rows
        self._row = min(self._row - gone, rows - 1)
        self._column, self._wraps = min(self._column, columns - 1), False

    def feed(self, data: str) -> None:
        """Take what a program writes."""
        while data:
            escape = _ESCAPE.match(data)
            if escape:
                self._escape(escape)
                data = data[escape.end() :]
            else:
                self._character(data[0])
                data = data[1:]

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column, self._wraps = 0, False
        elif character == "\b":
            self._move(0, -1)
        elif character == "\n":
            self._index()
        else:
            assert character.isprintable(), f"unexpected {character!r}"
            if self._wraps:
                self._index()
                self._column = 0
            self._lines[self._row][self._column] = character
            self._wraps = self._column == self.columns - 1
            self._column = min(self._column + 1, self.columns - 1)

    def _move(self, rows: int, columns: int) -> None:
        self._row = min(max(0, self._row + rows), self._rows - 1)
        self._column = min(max(0, self._column + columns), self.columns - 1)
        self._wraps = False

    def _index(self) -> None:
        self._wraps = False
        if self._row == self._rows - 1:
            self._above.append("".join(self._lines.pop(0)).rstrip())
            self._lines.append([" "] * self.columns)
        else:
            self._row += 1

    def _escape(self, escape: re.Match[str]) -> None:
        private, number, _, final, short = escape.groups()
        count = int(number or 1)
        if short == "D":
            self._index()
        elif short == "7":
            self._saved = (self._row, self._column)
        elif short == "8":
            self._row, self._column = self._saved
        elif final in _MOVES and not private:
            rows, columns = _MOVES[final]
            self._move(rows * count, columns * count)
        elif final == "K":
            first = 0 if number == "2" else self._column
            self._lines[self._row][first:] = [" "] * (self.columns - first)
        elif final == "J":
            self._lines[self._row][self._column :] = [" "] * (self.columns - self._column)
            for row in range(self._row + 1, self._rows):
                self._lines[row] = [" "] * self.columns
        else:
            assert final == "m" or private, f"unexpected escape {escape[0]!r}"
        if final != "m":
            self._wraps = False
