"""The commands of a conversation: their names, what they take, and what each does."""

import difflib
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.files import user_path
from recap_cli.chat_entries import QUOTES, Instruction
from recap_cli.chat_figures import (
    PictureRow,
    context_line,
    memory_rows,
    named,
    pictures_table,
    turns_table,
)
from recap_cli.chat_settings import SETTINGS, change
from recap_cli.chat_talk import Queued, Talk
from recap_cli.inputs import in_utf8
from recap_cli.render import Display

if TYPE_CHECKING:
    from engine.transcript import Transcript

_SHORT = 60
"""Characters that are shown of a question."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: without the slash.
        takes: what follows it, for help; empty where nothing does.
        about: what it does, in a line.
        run: does it, with what was typed behind the name.
        completes: words that Tab offers behind the name.
        files: whether it offers files there.
    """

    name: str
    takes: str
    about: str
    run: Callable[[Talk, str], None]
    completes: tuple[str, ...] = ()
    files: bool = False


def run(talk: Talk, typed: Instruction) -> None:
    """Do what a command says.

    Raises:
        UsageError: there is no such command, or not with such an argument.
        RecapError: it cannot be done.
    """
    command = COMMANDS.get(typed.name)
    if command is None:
        close = difflib.get_close_matches(typed.name, COMMANDS, n=1)
        meant = f"did you mean /{close[0]}? " if close else ""
        raise UsageError(
            f"there is no command /{typed.name}: {meant}/help shows all; a message that begins "
            f"with a slash goes between {QUOTES}"
        )
    if typed.argument and not command.takes:
        raise UsageError(f"/{command.name} takes nothing, not {typed.argument!r}")
    command.run(talk, typed.argument)


def show_queued(display: Display, added: Iterable[Queued]) -> None:
    """Show pictures that wait for the next message."""
    display.remark(pictures_table(map(_queued, added)))


def load(talk: Talk, path: Path, transcript: "Transcript | None" = None) -> None:
    """Go on with a saved conversation, and say where it stands; see `Talk.load`."""
    talk.load(path, transcript)
    exchanges = talk.conversation.exchanges
    last = f", the last one after: {_short(exchanges[-1].question.text)}" if exchanges else ""
    talk.display.notice(f"loaded {_turns(exchanges)} of {path}{last}")


def _image(talk: Talk, argument: str) -> None:
    sources = _words(argument)
    if not sources:
        raise UsageError("/image takes the paths of pictures, for the next message")
    show_queued(talk.display, talk.open(sources))


def _images(talk: Talk, _: str) -> None:
    rows = [
        PictureRow(f"turn {turn}", source.name, image.size)
        for turn, exchange in enumerate(talk.conversation.exchanges, start=1)
        for image, source in zip(exchange.question.images, exchange.question.sources, strict=True)
    ]
    rows += map(_queued, talk.queued)
    if rows:
        talk.display.show(pictures_table(rows))
    else:
        talk.display.say("no pictures yet: /image PATH queues one for the next message")


def _clear(talk: Talk, _: str) -> None:
    talk.conversation.clear()
    talk.queued.clear()
    talk.display.remark("the conversation begins anew")


def _undo(talk: Talk, _: str) -> None:
    if talk.queued:
        names = ", ".join(one.picture.source for one in talk.queued)
        talk.queued.clear()
        talk.display.remark(f"not queued any more: {names}")
        return
    last = talk.undo()
    if last is None:
        raise UsageError("nothing was said yet")
    talk.display.remark(f"taken back: {_short(last.question.text)}")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        text = in_utf8(argument, "the system message")
        talk.conversation.system = None if text == '""' else text
    current = talk.conversation.system
    talk.display.say(f"the system message is: {current}" if current else "no system message")


def _set(talk: Talk, argument: str) -> None:
    if argument:
        name, _, value = argument.partition(" ")
        change(talk, name, value.strip())
    rows = [(name, setting.show(talk)) for name, setting in SETTINGS.items()]
    talk.display.show(named(rows))


def _stats(talk: Talk, _: str) -> None:
    display, exchanges = talk.display, talk.conversation.exchanges
    if exchanges:
        display.show(turns_table(exchanges, display.width, ascii_only=display.ascii_only))
    else:
        display.say("no measures yet: nothing was answered")


def _memory(talk: Talk, _: str) -> None:
    talk.display.show(named(memory_rows(talk.memory_use())))


def _tokens(talk: Talk, _: str) -> None:
    queued = sum(one.tokens for one in talk.queued)
    use = talk.conversation.usage()
    talk.display.say(context_line(use, queued, ascii_only=talk.display.ascii_only))


def _save(talk: Talk, argument: str) -> None:
    path = talk.save(_file(argument))
    talk.display.remark(f"saved {_turns(talk.conversation.exchanges)} to {path}")


def _load(talk: Talk, argument: str) -> None:
    path = _file(argument)
    if path is None:
        raise UsageError("/load takes the file of a saved conversation")
    load(talk, path)


def _help(talk: Talk, _: str) -> None:
    rows = [(f"/{one.name} {one.takes}".rstrip(), one.about) for one in COMMANDS.values()]
    talk.display.show(named([*rows, (QUOTES, "begins and ends a message of several lines")]))


def _exit(talk: Talk, _: str) -> None:
    talk.over = True


def _queued(one: Queued) -> PictureRow:
    return PictureRow("queued", one.picture.source, one.picture.image.size, one.tokens)


def _turns(exchanges: Sequence[object]) -> str:
    return "1 turn" if len(exchanges) == 1 else f"{len(exchanges)} turns"


def _short(text: str) -> str:
    return textwrap.shorten(text, _SHORT, placeholder=" ...")


def _words(argument: str) -> list[str]:
    """An argument's words, as a shell would read them."""
    try:
        return shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"a quote or a backslash has nothing to end it: {argument}") from error


def _file(argument: str) -> Path | None:
    """The one file that an argument names, if it names any."""
    words = _words(argument)
    if len(words) > 1:
        raise UsageError(f"one file, not {len(words)}: put quotes around a name with blanks")
    if "\0" in argument:
        raise UsageError("no file has a NUL in its name")
    return user_path(words[0]) if words else None


_ALL = (
    Command("image", "PATH...", "queue pictures for the next message", _image, files=True),
    Command("images", "", "list the pictures of the conversation", _images),
    Command("clear", "", "forget the conversation, and begin anew", _clear),
    Command("undo", "", "take back queued pictures, or else the last turn", _undo),
    Command("regen", "", "answer the last question anew", lambda talk, _: talk.regenerate()),
    Command("system", "TEXT", 'set the system message; "" removes it', _system),
    Command("set", "NAME VALUE", "change a setting; alone, show them", _set, tuple(SETTINGS)),
    Command("stats", "", "show the measures of every turn", _stats),
    Command("memory", "", "show how much was learned, and where it is kept", _memory),
    Command("save", "FILE", "write the conversation to a file", _save, files=True),
    Command("load", "FILE", "go on with a saved conversation", _load, files=True),
    Command("tokens", "", "show how full the model's context is", _tokens),
    Command("help", "", "show this list", _help),
    Command("exit", "", "leave, as Ctrl-D does", _exit),
)
COMMANDS = {command.name: command for command in _ALL}
