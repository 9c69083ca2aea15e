"""`recap chat` as a person sees it: typed at a terminal, interrupted, resized, left."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pexpect
import pytest
from PIL import Image

from recap_cli.chat_input import history_path
from tests.recap_cli.conftest import ROOT, Terminal

Spawn = Callable[..., Terminal]
Process = Callable[..., "Popen[str]"]
REAL = [sys.executable, "-m", "recap_cli"]
SCENE = ROOT / "engine" / "demo" / "scene.png"
UP, TAB, CTRL_D = "\x1b[A", "\t", "\x04"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
GREETING = "recap: note: /help shows the commands; Ctrl-D leaves"
FIGURES = "2 tokens  4.0 tok/s  MAT 2.00  first 0.25 s  tree 1.0  suffix 100%"


@pytest.fixture
def talk(spawn: Spawn) -> Callable[..., Terminal]:
    """Starts a conversation, and waits for its prompt."""

    def start(model: str, *flags: str, columns: int = 80, rows: int = 24) -> Terminal:
        terminal = spawn("chat", "-m", model, *flags, columns=columns, rows=rows)
        terminal.until("leaves\n>")
        return terminal

    return start


Talk = Callable[..., Terminal]


def test_a_question_its_answer_and_one_line_about_it(talk: Talk) -> None:
    terminal = talk("echo")
    terminal.enter("hello")
    terminal.until("100%\n>")
    terminal.child.send(CTRL_D)
    assert terminal.end() == 0
    assert terminal.screen.text.splitlines() == [GREETING, "> hello", "hello", FIGURES, ">"]


def test_it_fits_forty_columns_and_need_not_keep_what_was_typed(talk: Talk) -> None:
    terminal = talk("echo", "--no-history", columns=40, rows=10)
    terminal.enter("one two three four five")
    terminal.until("…\n>")
    assert terminal.screen.text.splitlines()[2:] == [
        "> one two three four five",
        "one two three four five",
        "10 tokens  20.0 tok/s  MAT 2.00  first …",
        ">",
    ]
    terminal.enter("/stats")
    terminal.until("MAT by turn  █\n>")
    assert "   1      10  0.25 s   20.0  2.00" in terminal.screen.text.splitlines()
    assert not history_path().exists()


def test_what_is_pasted_waits_for_enter_and_quotes_take_several_lines(talk: Talk) -> None:
    terminal = talk("echo")
    terminal.child.send(f"{PASTE}one\n/exit\ntwo{PASTED}")
    terminal.until("> one\n/exit\ntwo")
    assert FIGURES[1:] not in terminal.screen.text
    terminal.child.send("\r")
    terminal.until("one /exit two\n6 tokens")
    terminal.until("\n>", times=2)
    terminal.child.send('"""\rone\rtwo"""\r')
    terminal.until("one two\n4 tokens")


def test_tab_completes_commands_and_files(talk: Talk) -> None:
    Image.new("RGB", (8, 8)).save("a picture.png")
    terminal = talk("echo")
    terminal.child.send(f"/im{TAB}s{TAB}")
    terminal.until("> /images")
    terminal.child.send(f"\b a\\ {TAB}")
    terminal.until("> /image a\\ picture.png")
    terminal.child.send("\r")
    terminal.until("8 x 8  4 tokens")
    terminal.until("[1 picture] >")
    terminal.enter("what is it")
    terminal.until("100%\n>")


def test_what_was_typed_is_there_in_the_next_run(talk: Talk) -> None:
    first = talk("echo")
    first.enter("hello")
    first.until("100%\n>")
    first.child.send(CTRL_D)
    assert first.end() == 0
    second = talk("echo")
    second.child.send(UP)
    second.until("> hello")
    second.child.send("\r")
    second.until("hello\n2 tokens")


def test_an_interrupt_ends_the_answer_and_the_next_turn_works(talk: Talk) -> None:
    terminal = talk("patient")
    terminal.enter("hello")
    terminal.until("tok/s")
    terminal.child.sendintr()
    terminal.until("wait\n2 tokens (interrupt)")
    terminal.until("\n>", times=2)
    terminal.enter("/tokens")
    terminal.until("10 of 64 tokens")
    terminal.enter("again")
    terminal.until("\nwait", times=2)
    terminal.child.sendintr()
    terminal.until("(interrupt)", times=2)


def test_an_interrupt_before_the_answer_takes_the_question_back(talk: Talk) -> None:
    terminal = talk("silent")
    terminal.enter("hello")
    terminal.until("reading 7 prompt tokens ...")
    terminal.child.sendintr()
    terminal.until("recap: error: stopped\n>")
    terminal.enter("/tokens")
    terminal.until("0 of 64 tokens")


def test_two_interrupts_end_an_answer_that_does_not_stop(talk: Talk) -> None:
    terminal = talk("deaf")
    terminal.enter("hello")
    terminal.until("tok/s")
    terminal.child.sendintr()
    terminal.until("more")
    terminal.child.sendintr()
    assert terminal.end() == 130


def test_two_interrupts_at_the_prompt_quit(talk: Talk) -> None:
    terminal = talk("echo")
    terminal.child.send("half a question")
    terminal.until("> half a question")
    terminal.child.sendintr()
    terminal.until("\n>", times=2)
    terminal.child.sendintr()
    terminal.until("Ctrl-C again quits, as Ctrl-D does\n>")
    terminal.child.sendintr()
    assert terminal.end() == 130


def test_a_terminated_prompt_leaves_the_terminal_as_it_was(talk: Talk) -> None:
    terminal = talk("echo")
    assert not terminal.child.getecho()
    terminal.child.kill(signal.SIGTERM)
    terminal.until(">")
    terminal.child.expect_exact("\x1b[?2004l")
    assert terminal.end() == 143


@pytest.mark.parametrize("answering", [False, True])
def test_a_terminal_that_is_closed_ends_it_with_all_that_was_said(
    talk: Talk, tmp_path: Path, answering: bool
) -> None:
    saved = tmp_path / "talk.json"
    terminal = talk("patient", "--save", str(saved))
    terminal.enter("hello")
    terminal.until("wait")
    if not answering:
        terminal.child.sendintr()
        terminal.until("\n>", times=2)
    terminal.child.ptyproc.fileobj.close()  # pexpect would send signals of its own, too
    assert terminal.child.wait() == 129
    assert "wait" in saved.read_text()


def test_a_dumb_terminal_gets_plain_lines(spawn: Spawn) -> None:
    child = spawn("chat", "-m", "echo", term="dumb").child
    child.expect_exact("> ")
    child.send("hello\r")
    child.expect_exact(f"hello\r\r\nhello \r\n{FIGURES}\r\n> ")
    child.send("/exit\r")
    child.expect(pexpect.EOF)


def test_the_window_may_change_its_size_during_an_answer(talk: Talk) -> None:
    terminal = talk("long", rows=12)
    terminal.enter("count")
    terminal.until("tok/s")
    terminal.resize(40, 10)
    terminal.until("MAT 2.00  firs…\n>")
    shown = "".join(line.ljust(40) for line in terminal.screen.text.splitlines()[2:-2])
    assert shown.split() == [str(number) for number in range(1, 201)]


def test_a_model_cannot_steer_the_terminal_through_markdown(talk: Talk) -> None:
    terminal = talk("rude", "--markdown")
    terminal.enter("hello")
    terminal.until("100%\n>")
    assert "\n[bold]loud[/bold] [31mred[0m :smile: ok\n" in terminal.screen.text


def test_the_demo_model_talks_about_a_picture(spawn: Spawn, tmp_path: Path) -> None:
    """The real command: typed, interrupted, left."""
    saved = tmp_path / "talk.json"
    terminal = spawn("chat", "--save", str(saved), columns=100, program=REAL)
    terminal.until("leaves\n>")
    terminal.enter(f"/image {SCENE}")
    terminal.until("[1 picture] >")
    terminal.enter("Describe this picture in detail.")
    terminal.until("\nThe picture")
    terminal.child.sendintr()
    terminal.until("\n>", times=2)
    terminal.enter("How many shapes are there?")
    terminal.until("\n>", times=3)
    terminal.child.send(CTRL_D)
    assert terminal.end() == 0
    turns = json.loads(saved.read_text())["exchanges"]
    assert [len(turn["question"]["pictures"]) for turn in turns] == [1, 0]
    assert turns[0]["answer"].startswith("The picture")


def test_an_interrupted_pipe_ends_and_keeps_what_was_said(process: Process, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    running = process("chat", "-m", "patient", "--save", str(path))
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write("hello\nagain\n")
    running.stdin.flush()
    assert running.stdout.read(5) == "wait "
    running.send_signal(signal.SIGINT)
    assert running.communicate()[0] == "\n"
    assert running.returncode == 130
    assert path.read_text() == '[["hello", "wait "]]'


def test_a_pipe_is_answered_line_by_line(process: Process) -> None:
    running = process("chat", "-m", "echo")
    assert running.stdin is not None
    assert running.stdout is not None
    for line in ("one\n", "two\n"):
        running.stdin.write(line)
        running.stdin.flush()
        assert running.stdout.readline().split() == line.split()
    stdout, stderr = running.communicate()
    assert (stdout, stderr, running.returncode) == ("", "recap: loading echo ...\n", 0)
