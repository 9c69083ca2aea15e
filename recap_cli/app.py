"""The command line `recap`: its commands, and the one place where errors become exit codes.

0 done; 1 the request failed; 2 wrong usage; 130 interrupted; 143 terminated; 129 the terminal was
closed; 141 nobody reads our output any more (what the shell reports of any program that a closed
pipe ends).
"""

import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import typer

from engine.errors import RecapError, UsageError
from recap_cli import bench, memory
from recap_cli.chat import chat
from recap_cli.generate import generate
from recap_cli.signals import send_nowhere
from recap_cli.terminal import print_error

OK, FAILED, USAGE = 0, 1, 2
_BY_SIGNAL = 128
_CLOSED_PIPE = _BY_SIGNAL + 13
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
# Typer's own complaints about a command line; the class has no public name of its own.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="recap",
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="generate")(generate)
app.command(name="chat")(chat)
app.add_typer(bench.app, name="bench")
app.add_typer(memory.app, name="memory")


@app.callback()
def recap(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Ask vision-language models about pictures, and get the same answer sooner."""
    if version:
        from recap_cli.records import installed_version  # noqa: PLC0415

        typer.echo(f"recap {installed_version('recap-vlm') or 'unknown'}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


def main() -> NoReturn:
    """The entry point."""
    if not _debugging():
        # What libraries warn of is for programmers.
        warnings.simplefilter("ignore")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        # Not `command.main()`, which has its own ideas of interrupts and closed pipes.
        command = typer.main.get_command(app)
        with command.make_context("recap", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as leaving:
        return leaving.exit_code
    except (BrokenPipeError, SystemExit):  # what Rich makes of a closed pipe
        _abandon_output()
        return _CLOSED_PIPE
    except KeyboardInterrupt as interrupt:
        return _BY_SIGNAL + int(getattr(interrupt, "signum", signal.SIGINT))
    except Exception as error:
        return _explain(error, arguments)
    return OK


def _explain(error: Exception, arguments: Sequence[str]) -> int:
    """Say on stderr what went wrong, in one line, and return the exit code for it."""
    if _debugging():
        traceback.print_exception(error)
    code = USAGE if isinstance(error, UsageError) else FAILED
    if isinstance(error, _CommandLineError):
        code, message = USAGE, _usage_message(error, arguments)
    elif isinstance(error, RecapError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        _abandon_output(sys.stdout)
        message = f"cannot write to standard output: {error.strerror}"
    else:
        message = f"unexpected {type(error).__name__}: {error} (RECAP_DEBUG=1 shows where)"
    try:
        print_error(message)
    except BrokenPipeError:
        _abandon_output()
    return code


def _usage_message(error: Exception, arguments: Sequence[str]) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else _command_path(arguments)
    if "unexpected extra argument" in message and path in ("recap generate", "recap chat"):
        message += "; quote a prompt of several words, and repeat --image for each picture"
    return f"{message.rstrip('.')} (see '{path} --help')"


def _command_path(arguments: Sequence[str]) -> str:
    """The command that a command line is for, as far as the names at its beginning tell."""
    path, commands = ["recap"], vars(typer.main.get_command(app))["commands"]
    for name in arguments:
        if name not in commands:
            break
        path.append(name)
        commands = getattr(commands[name], "commands", {})
    return " ".join(path)


def _debugging() -> bool:
    return os.environ.get("RECAP_DEBUG", "0") not in ("", "0")


def _abandon_output(*streams: TextIO) -> None:
    """Let the interpreter's last flush go nowhere instead of failing; of all outputs by default."""
    send_nowhere(stream.fileno() for stream in streams or (sys.stdout, sys.stderr))
