"""Runs of the command line, in this process and in others."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest

from recap_cli.app import run
from recap_cli.signals import ENDING
from tests.recap_cli.fakes import FOLDERS, use_fakes
from tests.recap_cli.screen import Screen

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-m", "tests.recap_cli.fakes"]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Terminal:
    """A command that runs on a terminal of its own."""

    child: Any
    screen: Screen

    def until(self, text: str, times: int = 1) -> None:
        """Wait until the screen shows `text`, or has shown it several times."""
        while self.screen.text.count(text) < times:
            try:
                self.screen.feed(self.child.read_nonblocking(4096, timeout=20))
            except pexpect.TIMEOUT:
                pytest.fail(f"no {text!r} on the screen:\n{self.screen.text}", pytrace=False)

    def enter(self, text: str) -> None:
        """Type a line and, once it is there, press Enter."""
        self.child.send(text)
        self.until(text.splitlines()[-1])
        self.child.send("\r")

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window."""
        self.screen.resize(columns, rows)
        self.child.setwinsize(rows, columns)

    def end(self) -> int:
        """Wait for the command's end; its exit code."""
        while True:
            try:
                self.screen.feed(self.child.read_nonblocking(4096, timeout=20))
            except pexpect.EOF:
                self.child.close()
                return int(self.child.exitstatus)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Signals end commands, even where pytest was told to ignore them, as `nohup` does."""
    before = {signum: signal.getsignal(signum) for signum in ENDING}
    for signum, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests off the user's memories and settings, in a folder that holds fake models."""
    for name in FOLDERS:
        (tmp_path / "work" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RECAP_MEMORY_DIR", str(tmp_path / "memories"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Our screens answer no question about where the cursor is.
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")
    for name in ("RECAP_MODEL", "RECAP_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recap(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command line in this process, without a terminal."""

    def call(*arguments: str) -> Outcome:
        code = run(arguments)
        stdout, stderr = capsys.readouterr()
        return Outcome(code, stdout, stderr)

    return call


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of `tests.recap_cli.fakes` in place of real ones."""
    use_fakes(monkeypatch.setattr)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Gives this process a standard input that is no terminal."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


@pytest.fixture
def spawn() -> Callable[..., Terminal]:
    """Starts a command with fake sessions on a terminal of its own."""

    def start(
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        shell: str = "",
        term: str = "xterm",
        program: Sequence[str] = FAKE,
    ) -> Terminal:
        command = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh"] if shell else []
        first, *rest = [*command, *program, *arguments]
        child = pexpect.spawn(
            first,
            rest,
            dimensions=(rows, columns),
            env=os.environ | {"TERM": term},
            encoding="utf-8",
            timeout=20,
        )
        return Terminal(child, Screen(columns, rows))

    return start


@pytest.fixture
def process() -> Callable[..., "subprocess.Popen[str]"]:
    """Starts a command with fake sessions, its output on pipes."""

    def start(*arguments: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        command: Sequence[str] = [*FAKE, *arguments]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    return start
