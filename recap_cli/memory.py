"""`recap memory`: look into the token memories' files, and delete them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from engine.errors import MemoryFileError, UsageError
from engine.files import user_path
from recap_cli.terminal import error_console, one_line, utf8

if TYPE_CHECKING:
    from engine.memory.table import TransitionTable

_NEXT_SHOWN = 3

app = typer.Typer(help="Inspect or clear what earlier answers taught.")

FileFlag = Annotated[str | None, typer.Option("--memory", metavar="FILE", help="This file only.")]
ModelFlag = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="MODEL", help="Only what this model's tokenizer uses."),
]


@dataclass(frozen=True, slots=True)
class NextToken:
    """A likely next token; text and probability as the memory has them."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Transition:
    """A key and its likeliest next tokens."""

    token: int
    text: str
    uses: int
    next: list[NextToken]


@dataclass(frozen=True, slots=True)
class Description:
    """What one token memory holds; sizes in bytes, times in ISO 8601.

    `keys` counts one-token keys, `pairs` and `triples` those of two and three tokens.
    """

    path: str
    tokenizer: str
    models: tuple[str, ...]
    k: int
    keys: int
    pairs: int
    triples: int
    bytes: int
    bytes_per_key: float | None
    first_used: str
    last_used: str
    requests: int
    most_used: list[Transition]


@app.command()
def inspect(
    memory: FileFlag = None,
    model: ModelFlag = None,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="Most used transitions to show.")
    ] = 10,
    json: Annotated[bool, typer.Option("--json", help="Write a JSON array.")] = False,
) -> None:
    """Show what token memories hold: all of them, or the one that is named."""
    paths = _chosen(memory, model)
    found = list(_described(paths, model, top, strict=memory is not None))
    if json:
        import orjson  # noqa: PLC0415

        sys.stdout.buffer.write(orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE))
        return
    console = Console(markup=False, emoji=False, highlight=False)
    for number, description in enumerate(found):
        if number:
            console.print()
        console.print(_table(description))


@app.command()
def clear(
    memory: FileFlag = None,
    model: ModelFlag = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete token memories, damaged ones too: all of them, or the one that is named."""
    from engine.memory.file import clear_memory  # noqa: PLC0415

    if memory is not None and model is not None:
        raise UsageError("--memory and --model exclude each other")
    paths = _chosen(memory, model)
    if paths and not yes:
        _ask_whether_to_delete(paths)
    for path in paths:
        _say(f"{'deleted' if clear_memory(path) else 'there is no'} {path}")


def _ask_whether_to_delete(paths: list[Path]) -> None:
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to confirm the deletion: repeat it with --yes")
    for path in paths:
        _say(f"about to delete {path}")
    what = "this token memory" if len(paths) == 1 else f"these {len(paths)} token memories"
    if not Confirm.ask(f"Delete {what}?", default=False, console=error_console()):
        raise typer.Exit(1)


def _chosen(memory: str | None, model: str | None) -> list[Path]:
    """The files that a command means; says so where there is none."""
    from engine.memory.paths import list_memories, memory_folder  # noqa: PLC0415

    if memory is not None:
        return [user_path(memory)]
    paths = list_memories(memory_folder())
    if model is not None:
        paths = list(filter(_belongs_to(model), paths))
    if not paths:
        _say(f"no token memory{f' of {model}' if model else ''} in {memory_folder()}")
    return paths


def _belongs_to(model: str) -> Callable[[Path], bool]:
    """Tells a model's memories: by its tokenizer where that is here, else by who wrote to them."""
    from engine.memory.file import read_memory  # noqa: PLC0415
    from recap_cli.token_text import local_fingerprint  # noqa: PLC0415

    fingerprint = local_fingerprint(model)

    def belongs(path: Path) -> bool:
        if fingerprint is not None:
            return path.stem == fingerprint
        with suppress(MemoryFileError):
            stored = read_memory(path)
            return stored is not None and model in stored[0].models
        return False

    return belongs


def _described(
    paths: list[Path], model: str | None, top: int, *, strict: bool
) -> Iterator[Description]:
    """Each file's description; one that cannot be read is an error if `strict`, else a note."""
    for path in paths:
        try:
            yield _description(path, model, top)
        except MemoryFileError as error:
            if strict:
                raise
            _say(f"note: {error}")


def _description(path: Path, model: str | None, top: int) -> Description:
    from engine.memory.file import read_memory  # noqa: PLC0415
    from engine.memory.paths import list_memories  # noqa: PLC0415
    from recap_cli.token_text import token_text  # noqa: PLC0415

    stored = read_memory(path)
    if stored is None:
        if path in list_memories(path.parent):
            way_out = "'recap memory clear' deletes them"
            raise MemoryFileError(f"of {path} only damaged copies are left; {way_out}")
        raise MemoryFileError(f"there is no token memory {path}; 'recap memory inspect' shows all")
    header, (tokens, phrases) = stored
    size = path.stat().st_size
    keys = len(tokens.keys) + len(phrases.keys)
    text = token_text([model] if model else header.models, header.tokenizer)
    return Description(
        path=utf8(str(path.absolute())),
        tokenizer=header.tokenizer,
        models=header.models,
        k=header.k,
        keys=len(tokens.keys),
        pairs=phrases.pairs,
        triples=len(phrases.keys) - phrases.pairs,
        bytes=size,
        bytes_per_key=round(size / keys, 1) if keys else None,
        first_used=header.first_used,
        last_used=header.last_used,
        requests=header.requests,
        most_used=_most_used(tokens, text, top),
    )


def _most_used(table: "TransitionTable", text: Callable[[int], str], top: int) -> list[Transition]:
    """The `top` rows by uses, the lower id first where uses are equal."""
    rows = (-table.uses.astype("int64")).argsort(kind="stable")[:top].tolist()
    return [
        Transition(
            token=(token := int(table.keys[row])),
            text=text(token),
            uses=int(table.uses[row]),
            next=[
                NextToken(token, text(token), round(share, 4))
                for token, share in zip(
                    table.next_ids[row].tolist(), table.probs[row].tolist(), strict=True
                )
                if share > 0
            ],
        )
        for row in rows
    ]


def _table(found: Description) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    per_key = f", {found.bytes_per_key:g} bytes a key" if found.bytes_per_key else ""
    rows = {
        "file": found.path,
        "models": ", ".join(found.models),
        "tokenizer": found.tokenizer,
        "keys": f"{found.keys} of one token, with {found.k} next tokens each",
        "phrases": f"{found.pairs} of two tokens, {found.triples} of three",
        "size": f"{decimal(found.bytes)}{per_key}",
        "used": f"first {_moment(found.first_used)}, last {_moment(found.last_used)}",
        "requests": str(found.requests),
    }
    for label, value in rows.items():
        table.add_row(label, one_line(value))
    for number, transition in enumerate(found.most_used):
        table.add_row("" if number else "most used", _transition_line(transition))
    return table


def _transition_line(transition: Transition) -> Text:
    following = ", ".join(f"{n.text} {n.probability:.0%}" for n in transition.next[:_NEXT_SHOWN])
    line = Text(f"{one_line(transition.text)} \N{RIGHTWARDS ARROW} {one_line(following)}")
    return line.append(f"  ({transition.uses} uses)", style="dim")


def _moment(stamp: str) -> str:
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"


def _say(message: str) -> None:
    error_console().print(f"recap: {one_line(message)}", soft_wrap=True)
