"""`recap memory`: what it shows of real files, and what it deletes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pexpect
import pytest
from rich.filesize import decimal
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engine.memory.file import update_memory
from engine.memory.paths import memory_folder, memory_path, tokenizer_fingerprint
from engine.memory.table import NO_NEXT, PHRASE_K, PhraseTable, Tables, TransitionTable
from tests.engine.memory.tables import phrases
from tests.recap_cli.conftest import Outcome, Terminal

Recap = Callable[..., Outcome]
VOCABULARY = {"the": 0, "red": 1, "blue": 2, "star": 3, "[b]": 4}
FINGERPRINT = tokenizer_fingerprint(VOCABULARY)


def learned() -> TransitionTable:
    """`the` is followed by red or blue, red by star; `the` was seen more often."""
    return TransitionTable(
        keys=np.array([0, 1], np.int32),
        next_ids=np.array([[1, 2], [3, NO_NEXT]], np.int32),
        probs=np.array([[0.5, 0.25], [1.0, 0.0]], np.float32),
        uses=np.array([9, 2], np.uint32),
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model folder that holds a tokenizer and nothing else."""
    folder = tmp_path / "model"
    folder.mkdir()
    Tokenizer(WordLevel(VOCABULARY, unk_token="the")).save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def file(model: str) -> Path:
    """The model's memory, where it belongs."""
    path = memory_path(FINGERPRINT)
    longer = phrases({(0, 1): 3, (3, 0): 1, (3, 0, 1): 3})
    update_memory(path, FINGERPRINT, model, Tables(learned(), longer), requests=3)
    return path


@pytest.fixture
def other() -> Path:
    """The memory of a tokenizer that is not here."""
    path = memory_path("0123456789abcdef")
    tables = Tables(learned(), PhraseTable.empty(PHRASE_K))
    update_memory(path, "0123456789abcdef", "some/model", tables, requests=1)
    return path


def test_inspect_says_what_a_memory_holds(
    recap: Recap, file: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    outcome = recap("memory", "inspect")
    shown = [line.strip() for line in outcome.stdout.splitlines()]
    shown[6] = shown[6].split()[0]  # when it was used depends on the clock
    size = file.stat().st_size
    assert shown == [
        f"file       {file}",
        f"models     {model}",
        f"tokenizer  {FINGERPRINT}",
        "keys       2 of one token, with 2 next tokens each",
        "phrases    2 of two tokens, 1 of three",
        f"size       {decimal(size)}, {round(size / 5, 1):g} bytes a key",
        "used",
        "requests   3",
        "most used  'the' → 'red' 50%, 'blue' 25%  (9 uses)",
        "'red' → 'star' 100%  (2 uses)",
    ]


def test_inspect_as_json(recap: Recap, file: Path, model: str) -> None:
    [found] = json.loads(recap("memory", "inspect", "--json", "--top", "1").stdout)
    assert found.pop("first_used") == found.pop("last_used")
    assert found == {
        "path": str(file),
        "tokenizer": FINGERPRINT,
        "models": [model],
        "k": 2,
        "keys": 2,
        "pairs": 2,
        "triples": 1,
        "bytes": file.stat().st_size,
        "bytes_per_key": round(file.stat().st_size / 5, 1),
        "requests": 3,
        "most_used": [
            {
                "token": 0,
                "text": "'the'",
                "uses": 9,
                "next": [
                    {"token": 1, "text": "'red'", "probability": 0.5},
                    {"token": 2, "text": "'blue'", "probability": 0.25},
                ],
            }
        ],
    }


def test_tokens_of_a_tokenizer_that_is_not_here_are_ids(recap: Recap, other: Path) -> None:
    assert "0 → 1 50%, 2 25%  (9 uses)" in recap("memory", "inspect", "--memory", str(other)).stdout


def test_a_tokenizer_that_does_not_fit_gives_no_text(recap: Recap, other: Path, model: str) -> None:
    outcome = recap("memory", "inspect", "--memory", str(other), "-m", model)
    assert "0 → 1 50%" in outcome.stdout


def test_a_file_and_a_model_cannot_both_say_what_is_deleted(
    recap: Recap, other: Path, model: str
) -> None:
    outcome = recap("memory", "clear", "-y", "--memory", str(other), "-m", model)
    assert outcome.code == 2
    assert "--memory and --model exclude each other" in outcome.stderr
    assert other.exists()


@pytest.mark.usefixtures("file", "other")
def test_all_memories_are_shown_or_those_of_a_model(recap: Recap, model: str) -> None:
    def requests(*arguments: str) -> list[int]:
        found = json.loads(recap("memory", "inspect", "--json", *arguments).stdout)
        return sorted(memory["requests"] for memory in found)

    assert requests() == [1, 3]
    assert requests("-m", model) == [3]
    assert requests("-m", "some/model") == [1]


def test_nothing_to_inspect_is_said(recap: Recap) -> None:
    message = f"recap: no token memory in {memory_folder()}\n"
    assert recap("memory", "inspect") == Outcome(0, "", message)
    assert recap("memory", "inspect", "--json") == Outcome(0, "[]\n", message)


def test_a_file_that_is_missing_or_damaged_fails(recap: Recap, tmp_path: Path) -> None:
    file = tmp_path / "memory"
    for content in (None, b"junk"):
        if content:
            file.write_bytes(content)
        outcome = recap("memory", "inspect", "--memory", str(file))
        assert outcome.code == 1
        assert outcome.stderr.startswith("recap: error: ")
        assert str(file) in outcome.stderr


def test_a_damaged_file_does_not_hide_the_others(recap: Recap, file: Path) -> None:
    damaged = file.with_name("damaged.safetensors")
    damaged.write_bytes(b"junk")
    outcome = recap("memory", "inspect")
    assert outcome.code == 0
    assert "requests" in outcome.stdout
    assert str(damaged) in outcome.stderr


def test_clear_with_yes_deletes_all(recap: Recap, file: Path, other: Path) -> None:
    outcome = recap("memory", "clear", "--yes")
    assert outcome.code == 0
    assert not file.exists()
    assert not other.exists()
    assert sorted(outcome.stderr.splitlines()) == sorted(
        f"recap: deleted {path}" for path in (file, other)
    )


@pytest.mark.parametrize("by", ["model", "file"])
def test_clear_deletes_what_is_named(
    recap: Recap, file: Path, other: Path, model: str, by: str
) -> None:
    named = ["-m", model] if by == "model" else ["--memory", str(file)]
    assert recap("memory", "clear", "--yes", *named).code == 0
    assert not file.exists()
    assert other.exists()


def test_clear_needs_no_sound_file(recap: Recap, file: Path) -> None:
    file.write_bytes(b"junk")
    assert recap("memory", "clear", "--yes").code == 0
    assert not file.exists()


def test_clear_without_anybody_to_ask_is_wrong_usage(
    recap: Recap, file: Path, stdin: Callable[[bytes], None]
) -> None:
    stdin(b"y\n")
    outcome = recap("memory", "clear")
    assert outcome.code == 2
    assert "--yes" in outcome.stderr
    assert file.exists()


@pytest.mark.parametrize(
    ("reply", "code", "left"), [("y", 0, False), ("n", 1, True), ("", 1, True)]
)
def test_clear_asks_on_a_terminal(
    spawn: Callable[..., Terminal], file: Path, reply: str, code: int, left: bool
) -> None:
    terminal = spawn("memory", "clear")
    terminal.until("Delete this token memory?")
    terminal.child.sendline(reply)
    assert terminal.end() == code
    assert file.exists() is left


def test_ctrl_c_at_the_question_deletes_nothing(spawn: Callable[..., Terminal], file: Path) -> None:
    terminal = spawn("memory", "clear")
    terminal.until("Delete this token memory?")
    unheard = True
    while unheard:  # Python misses a signal that comes just before it begins to read
        terminal.child.sendintr()
        unheard = terminal.child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=3) == 1
    terminal.child.close()
    assert terminal.child.exitstatus == 130
    assert file.exists()


def test_damaged_copies_without_a_memory_are_told_and_cleared(recap: Recap, file: Path) -> None:
    aside = file.with_name(f"{file.name}.corrupt-20260101T000000")
    file.rename(aside)
    told = recap("memory", "inspect").stderr
    assert told == (
        f"recap: note: of {file} only damaged copies are left; 'recap memory clear' deletes them\n"
    )
    assert recap("memory", "clear", "--yes").code == 0
    assert not aside.exists()
