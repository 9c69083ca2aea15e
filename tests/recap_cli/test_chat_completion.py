"""What Tab offers at the prompt of a conversation."""

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from recap_cli.chat_completion import ChatCompleter


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a few names, which is also the user's own."""
    folder = tmp_path / "files"
    (folder / "my pictures").mkdir(parents=True)
    for name in ("my pictures/ü.png", "a.png", "it's.png", ".hidden"):
        (folder / name).touch()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))


def completed(typed: str) -> list[str]:
    """The lines that may become of one."""
    found = ChatCompleter().get_completions(Document(typed), CompleteEvent())
    return [typed[: len(typed) + each.start_position] + each.text for each in found]


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("/im", ["/image ", "/images"]),
        ("/ex", ["/exit"]),
        ("/set d", ["/set drop-oldest "]),
        ("/clear ", []),
        ("/nothing ", []),
        ("im", []),
        ("see /im", []),
    ],
)
def test_commands_are_completed(typed: str, lines: list[str]) -> None:
    assert completed(typed) == lines


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("/load ", ["/load a.png ", "/load it\\'s.png ", "/load my\\ pictures/"]),
        ("/image a", ["/image a.png "]),
        ("/image a.png my", ["/image a.png my\\ pictures/"]),
        ("/image my\\ pictures/", ["/image my\\ pictures/ü.png "]),
        ('/image "my pictures"/', ["/image my\\ pictures/ü.png "]),
        ("/image 'my p", ["/image my\\ pictures/"]),
        ("/image 'a b' ~/a", ["/image 'a b' ~/a.png "]),
        ("/save .", ["/save .hidden "]),
        ("/image none/", []),
    ],
)
def test_files_are_completed_as_a_shell_writes_them(typed: str, lines: list[str]) -> None:
    assert completed(typed) == lines
