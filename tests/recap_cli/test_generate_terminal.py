"""`recap generate` as a person sees it: on a terminal, through pipes, interrupted."""

import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from tests.recap_cli.conftest import Terminal

Spawn = Callable[..., Terminal]
Process = Callable[..., "Popen[str]"]
COUNTED = "".join(f"{number} " for number in range(1, 201)).rstrip()


def unwrapped(terminal: Terminal) -> str:
    """What the screen shows, as the one line that the terminal broke into many."""
    columns = terminal.screen.columns
    return "".join(line.ljust(columns) for line in terminal.screen.text.splitlines()).rstrip()


def test_live_figures_stand_below_the_text(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "patient", "hello")
    terminal.until("tok/s")
    assert terminal.screen.text == "wait\n2 tokens  4.0 tok/s  MAT 2.00  tree 1.0  suffix 100%"
    terminal.child.sendintr()
    assert terminal.end() == 130


def test_what_may_be_downloaded_is_loaded_without_animation(spawn: Spawn) -> None:
    """A download draws progress bars of its own."""
    terminal = spawn("generate", "-m", "remote", "hello", "--no-stats")
    assert terminal.end() == 0
    assert terminal.screen.text == "recap: loading remote ...\nhello"


@pytest.mark.parametrize(("columns", "rows"), [(40, 6), (80, 24), (33, 50)])
def test_at_the_end_the_text_is_whole_and_the_figures_are_gone(
    spawn: Spawn, columns: int, rows: int
) -> None:
    terminal = spawn("generate", "-m", "long", "count", "--no-stats", columns=columns, rows=rows)
    assert terminal.end() == 0
    assert unwrapped(terminal) == COUNTED


def test_text_that_reaches_the_terminal_through_a_pipe_is_whole(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "long", "count", "--no-stats", shell="| cat")
    assert terminal.end() == 0
    assert unwrapped(terminal) == COUNTED


def test_figures_are_live_while_text_goes_into_a_file(spawn: Spawn, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    terminal = spawn("generate", "-m", "patient", "hello", shell=f"> {answer}")
    terminal.until("2 tokens  4.0 tok/s")
    terminal.child.sendintr()
    terminal.end()
    assert answer.read_text() == "wait \n"
    assert "tok/s" not in terminal.screen.text


def test_the_summary_fits_forty_columns(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "echo", "a b c", columns=40)
    assert terminal.end() == 0
    shown = " ".join(terminal.screen.text.split())
    for part in ("6 (stop)", "first token 0.25 s", "12.0 tokens/s", "MAT 2.00", "suffix 3", "█ 3"):
        assert part in shown


def test_a_model_cannot_steer_the_terminal(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "rude", "hello", "--no-stats")
    assert terminal.end() == 0
    assert terminal.screen.text == "[bold]loud[/bold] [31mred[0m :smile: ok"


def test_notes_do_not_run_into_text(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "noted", "hello", "--no-stats")
    assert terminal.end() == 0
    assert terminal.screen.text.splitlines() == [
        "recap: note: the session has a note",
        "hello",
        "recap: note: the memory has a note",
    ]


def test_no_color_means_no_colour(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    written = spawn("generate", "-m", "missing", "hello").child.read()
    assert "recap: error: there is no model" in written
    assert "\x1b[31m" not in written


def test_a_dumb_terminal_gets_plain_lines(spawn: Spawn) -> None:
    written = spawn("generate", "-m", "echo", "a b", term="dumb").child.read()
    assert written.startswith("recap: loading echo ...\r\na b \r\n")
    assert "\x1b" not in written


def test_quiet_shows_nothing_but_the_answer(spawn: Spawn) -> None:
    assert spawn("generate", "-m", "noted", "a b", "--quiet").child.read() == "a b \r\n"


def test_an_interrupt_keeps_the_partial_answer_and_its_figures(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "patient", "hello")
    terminal.until("tok/s")
    terminal.child.sendintr()
    assert terminal.end() == 130
    first, second, *_ = terminal.screen.text.splitlines()
    assert first.startswith("wait")
    assert second.split() == ["tokens", "2", "(interrupt)", "after", "7", "prompt", "tokens"]


def test_an_interrupt_keeps_the_partial_answer_in_json_too(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "patient", "hello", "--json", columns=2000)
    terminal.until("tok/s")
    terminal.child.sendintr()
    assert terminal.end() == 130
    assert '"text":"wait ","token_ids":[1,2],"finish_reason":"interrupt"' in terminal.screen.text


@pytest.mark.parametrize(
    ("model", "shown"),
    [("heavy", "loading heavy ..."), ("silent", "reading 7 prompt tokens ...")],
)
def test_an_interrupt_before_the_first_token_ends_everything(
    spawn: Spawn, model: str, shown: str
) -> None:
    terminal = spawn("generate", "-m", model, "hello")
    terminal.until(shown)
    terminal.child.sendintr()
    assert terminal.end() == 130
    assert terminal.screen.text in ("", "^C")


def test_a_second_interrupt_ends_everything(spawn: Spawn) -> None:
    terminal = spawn("generate", "-m", "deaf", "hello")
    terminal.until("tok/s")
    terminal.child.sendintr()
    terminal.until("more")
    terminal.child.sendintr()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.screen.text


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_end_from_outside_keeps_the_partial_answer(
    process: Process, signum: signal.Signals, code: int
) -> None:
    running = process("generate", "-m", "patient", "hello", "--stats")
    assert running.stdout is not None
    assert running.stdout.read(5) == "wait "
    running.send_signal(signum)
    _, stderr = running.communicate()
    assert running.returncode == code
    assert "(interrupt)" in stderr


def test_a_closed_pipe_is_quiet(process: Process) -> None:
    running = process("generate", "-m", "long", "count", "--stats")
    assert running.stdout is not None
    assert running.stderr is not None
    with running, running.stderr:
        assert running.stdout.read(1) == "1"
        running.stdout.close()
        assert running.stderr.read() == "recap: loading long ...\n"
    assert running.returncode == 141


def test_off_a_terminal_nothing_moves(process: Process) -> None:
    running = process("generate", "-m", "echo", "a b", "--stats")
    stdout, stderr = running.communicate()
    assert stdout == "a b \n"
    assert stderr.startswith("recap: loading echo ...\ntokens ")
    assert "\x1b" not in stderr
