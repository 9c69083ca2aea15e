"""The command line as a whole: exit codes, errors in one line, and a quick start."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from engine.sizes import PixelLimits
from recap_cli import options, sessions
from tests.recap_cli.conftest import ROOT, Outcome

Recap = Callable[..., Outcome]


def alone(code: str, *arguments: str) -> str:
    """What Python code writes in a process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["memory", "-h"]])
def test_help_starts_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from recap_cli.app import run; code = run(sys.argv[1:]);"
        "print(code, *({'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    said = alone(code, *arguments)
    assert "Usage: recap" in said
    assert said.splitlines()[-1] == "0"


@pytest.mark.parametrize(
    "command",
    [
        "generate -q -n 1 --no-memory hello",
        "bench --limit 1 -n 1 --methods recap",
        "bench cost --sizes 1 --contexts 16 --repeats 2",
    ],
)
def test_no_garbage_is_looked_for_among_libraries(command: str) -> None:
    code = (
        "import gc, sys; from recap_cli.app import run; code = run(sys.argv[1:]);"
        "print(code, gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))"
    )
    said = alone(code, *command.split())
    assert said.splitlines()[-1] == "0 True True"


def test_python_m_recap_cli_is_recap() -> None:
    command = [sys.executable, "-m", "recap_cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith("recap ")


def in_a_shell(words: str) -> subprocess.CompletedProcess[str]:
    """What becomes of `recap` with these words, which a shell reads."""
    command = ["sh", "-c", f'exec "$0" -m recap_cli {words}', sys.executable]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_closed_stdout_or_stderr_is_one_that_nobody_reads(closed: str) -> None:
    done = in_a_shell(f"generate -q -n 2 --no-memory hello {closed}>&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (closed == "2")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", ["generate -q -n 2 --no-memory hello", "--help"])
def test_a_full_disk_is_said_in_one_line(arguments: str) -> None:
    done = in_a_shell(f"{arguments} >/dev/full")
    said = "recap: error: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_help_that_nobody_reads_ends_like_any_closed_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "recap_cli", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_a_command_help_is_shown_and_the_usage_is_wrong(recap: Recap) -> None:
    outcome = recap()
    assert outcome.code == 2
    assert "generate" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generat"], "No such command 'generat'. Did you mean 'generate'? (see 'recap --help')"),
        (["--bad"], "No such option: --bad (see 'recap --help')"),
        (["generate", "--bad"], "No such option: --bad (see 'recap generate --help')"),
        (["generate", "--nodes", "-1", "hi"], "nodes must be from 0 to 1024, not -1"),
        (
            ["generate", "--memory", "m", "--no-memory", "hi"],
            "--memory and --no-memory exclude each other",
        ),
        (["generate", "--memory", ".", "hi"], "--memory names a file, and '.' is none"),
        (["generate", "-i"], "Option '-i' requires an argument (see 'recap generate --help')"),
        (
            ["memory", "clear", "-m"],
            "Option '-m' requires an argument (see 'recap memory clear --help')",
        ),
        (
            ["generate", "-i", "a.png", "b.png", "what is", "this"],
            "Got unexpected extra argument(s) (what is this); quote a prompt of several words, and"
            " repeat --image for each picture (see 'recap generate --help')",
        ),
        (["bench", "--methods", ""], "--methods lists nothing; name some, or leave it out"),
        (["bench", "--nodes", " ,"], "--nodes lists nothing; name some, or leave it out"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    recap: Recap, arguments: list[str], message: str
) -> None:
    assert recap(*arguments) == Outcome(2, "", f"recap: error: {message}\n")


@pytest.mark.parametrize("arguments", [["-n", "0"], ["--device", "gpu"], ["-i"], ["a", "b"]])
def test_bad_values_are_wrong_usage_too(recap: Recap, arguments: list[str]) -> None:
    outcome = recap("generate", "hi", *arguments)
    assert outcome.code == 2
    assert outcome.stderr.startswith("recap: error: ")
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.usefixtures("fakes")
class TestErrorsOfARequest:
    """With fake sessions."""

    def test_a_model_that_cannot_be_opened_is_code_1(self, recap: Recap) -> None:
        outcome = recap("generate", "-m", "missing", "-q", "hi")
        message = "recap: error: there is no model missing: name another one\n"
        assert outcome == Outcome(1, "", message)

    def test_what_was_answered_before_a_failure_stays(self, recap: Recap) -> None:
        outcome = recap("generate", "-m", "broken", "-q", "one two three")
        message = "recap: error: the model broke: ask something else\n"
        assert outcome == Outcome(1, "one two \n", message)

    def test_the_unforeseen_is_one_line_that_says_how_to_see_more(self, recap: Recap) -> None:
        outcome = recap("generate", "-m", "buggy", "-q", "hi")
        message = "recap: error: unexpected ValueError: [oops] (RECAP_DEBUG=1 shows where)\n"
        assert outcome == Outcome(1, "", message)

    def test_debugging_shows_where(self, recap: Recap, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RECAP_DEBUG", "1")
        outcome = recap("generate", "-m", "buggy", "-q", "hi")
        assert outcome.stderr.startswith("Traceback (most recent call last)")
        assert outcome.stderr.endswith("shows where)\n")


def test_the_flags_offer_what_a_session_takes() -> None:
    from engine import images, loading  # noqa: PLC0415
    from engine.drafters import registry  # noqa: PLC0415

    kinds = (options.Device, options.DeviceMap, options.DType)
    offered = {kind: [m.value for m in kind] for kind in kinds}
    assert offered[options.Device] == list(get_args(loading.Device))
    assert offered[options.DeviceMap] == list(get_args(loading.DeviceMap))
    assert offered[options.DType] == list(get_args(loading.Dtype))
    assert {method.value for method in options.Method} <= set(get_args(registry.Method))
    assert loading.DEMO_MODEL == options.DEMO_MODEL
    assert (
        images.ImageOptions(options.BACKGROUND, options.MAX_IMAGE_PIXELS) == images.ImageOptions()
    )


def test_a_request_is_the_system_message_and_the_users() -> None:
    request = sessions.make_request(
        "look",
        "be brief",
        [],
        max_tokens=7,
        elapsed_s=0.5,
        stop=["end"],
        pixels=PixelLimits(most=9),
        template=True,
    )
    assert [(m.role, m.text) for m in request.messages] == [
        ("system", "be brief"),
        ("user", "look"),
    ]
    assert (request.max_tokens, request.elapsed_s) == (7, 0.5)
    assert (request.stop, request.pixels) == (["end"], PixelLimits(most=9))
    assert [m.template for m in request.messages] == [False, True]
