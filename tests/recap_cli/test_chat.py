"""`recap chat` off a terminal: lines in, answers out, and what its commands do."""

import json
import stat
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine.events import Notice
from recap_cli import chat_input, sessions
from recap_cli.chat_commands import COMMANDS
from tests.recap_cli.conftest import Outcome
from tests.recap_cli.fakes import FakeSession

Recap = Callable[..., Outcome]
Stdin = Callable[[bytes], None]
Chat = Callable[..., Outcome]

pytestmark = pytest.mark.usefixtures("fakes")


@pytest.fixture
def chat(recap: Recap, stdin: Stdin, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Pipes entries into a conversation with a model, where lines are never too long."""
    monkeypatch.setenv("COLUMNS", "300")

    def lead(
        *entries: str, model: str = "echo", flags: tuple[str, ...] = (), quiet: bool = True
    ) -> Outcome:
        stdin("\n".join(entries).encode("utf-8", "surrogateescape"))
        return recap("chat", "-m", model, *flags, *(["-q"] if quiet else []))

    return lead


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A picture whose name takes quotes."""
    path = tmp_path / "a [b] ü.png"
    Image.effect_noise((64, 48), 90).save(path)
    return path


def error(outcome: Outcome) -> str:
    """The one error that a conversation ended with, without what precedes its message."""
    assert outcome.code == 1
    [line] = [line for line in outcome.stderr.splitlines() if line.startswith("recap: error: ")]
    return line.removeprefix("recap: error: ")


class TestPiped:
    """Every line is a turn."""

    def test_answers_are_on_stdout_line_by_line(self, chat: Chat) -> None:
        assert chat("one two", "", "  three ") == Outcome(0, "one two \nthree \n", "")

    def test_what_is_said_about_it_is_on_stderr(self, recap: Recap, stdin: Stdin) -> None:
        stdin(b"hello\n")
        outcome = recap("chat", "-m", "noted")
        assert outcome.stdout == "hello \n"
        assert outcome.stderr.splitlines() == [
            "recap: loading noted ...",
            "recap: note: the session has a note",
            "recap: note: the memory has a note",
        ]

    def test_quotes_hold_several_lines(self, chat: Chat) -> None:
        assert chat('"""', "/help", "", "two", '"""', "three").stdout == "/help two \nthree \n"

    def test_a_dragged_path_is_text(self, chat: Chat) -> None:
        assert chat("/home/me/cat.png what is it").stdout == "/home/me/cat.png what is it \n"

    def test_nothing_is_a_conversation_too(self, chat: Chat) -> None:
        assert chat() == Outcome(0, "", "")

    def test_windows_and_their_files(self, chat: Chat) -> None:
        assert chat("\ufeffone\r", "two\r").stdout == "one \ntwo \n"

    def test_a_turn_that_fails_does_not_end_it(self, chat: Chat) -> None:
        outcome = chat("caf\udce9", "hello")
        assert outcome.stdout == "hello \n"
        assert error(outcome) == "the message is not UTF-8 text"

    def test_an_answer_that_breaks_off_ends_its_line(self, chat: Chat) -> None:
        outcome = chat("a b c", "d", model="broken")
        assert outcome.stdout == "a b \nd \n"
        assert error(outcome) == "the model broke: ask something else"

    def test_an_unknown_command_is_said_and_not_sent(self, chat: Chat) -> None:
        outcome = chat("/imag x.png", "hello")
        assert outcome.stdout == "hello \n"
        assert error(outcome).startswith("there is no command /imag: did you mean /image?")

    def test_exit_leaves(self, chat: Chat) -> None:
        assert chat("one", "/exit", "two") == Outcome(0, "one \n", "")

    def test_a_model_that_cannot_be_opened_ends_it(self, chat: Chat) -> None:
        assert error(chat("one", model="missing")) == "there is no model missing: name another one"

    def test_jsonl_is_a_record_a_turn_failed_ones_too(self, chat: Chat) -> None:
        outcome = chat("a b", "/tokens", "a b c", "d", model="broken", flags=("--jsonl", "-s", "S"))
        records = [json.loads(line) for line in outcome.stdout.splitlines()]
        assert [record["prompt"] for record in records] == ["a b", "a b c", "d"]
        assert [record["text"] for record in records] == ["a b ", "a b ", "d "]
        assert [record["error"] is None for record in records] == [True, False, True]
        assert {record["system"] for record in records} == {"S"}
        assert [record["kept_tokens"] for record in records] == [0, None, 0]
        assert outcome.code == 1

    def test_nothing_of_it_is_kept_as_history(self, chat: Chat) -> None:
        chat("one")
        assert not chat_input.history_path().exists()

    def test_the_token_memory_is_saved_every_few_turns(
        self, recap: Recap, stdin: Stdin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notes = iter(["first", "second", "at the end"])
        monkeypatch.setattr(FakeSession, "save_memory", lambda _: [Notice(next(notes))])
        stdin(b"\n".join([b"one"] * 9))
        said = recap("chat", "-m", "echo").stderr.splitlines()[1:]
        assert said == ["recap: note: first", "recap: note: second", "recap: note: at the end"]


class TestPictures:
    """They go with the next message, or it is not sent."""

    def test_they_are_queued_with_name_size_and_tokens(self, chat: Chat, picture: Path) -> None:
        outcome = chat(f"/image '{picture}'", "hi", "again", flags=("--jsonl",), quiet=False)
        first, second = map(json.loads, outcome.stdout.splitlines())
        assert (first["images"], first["image_tokens"]) == ([str(picture)], 4)
        assert (second["images"], second["image_tokens"]) == ([], 0)
        queued = f"queued {picture} 64 x 48 4 tokens"
        assert " ".join(outcome.stderr.split()) == f"recap: loading echo ... {queued}"

    @pytest.mark.parametrize(
        "spelt", ["'{}/a [b] ü.png'", r"{}/a\ \[b\]\ ü.png", '{}/"a [b] ü.png"']
    )
    def test_paths_are_read_as_a_shell_reads_them(
        self, chat: Chat, picture: Path, spelt: str
    ) -> None:
        assert chat(f"/image {spelt.format(picture.parent)}").code == 0

    def test_flags_queue_them_too(self, chat: Chat, picture: Path) -> None:
        outcome = chat("hi", flags=("--jsonl", "-i", str(picture), "-i", str(picture)))
        assert json.loads(outcome.stdout)["images"] == [str(picture)] * 2

    def test_a_missing_one_is_said_before_the_model_is_loaded(self, chat: Chat) -> None:
        message = error(chat("hi", model="missing", flags=("-i", "none.png")))
        assert message.startswith("none.png: no such file")

    def test_all_of_a_command_are_queued_or_none(self, chat: Chat, picture: Path) -> None:
        outcome = chat(f"/image '{picture}' none.png", "what is it", "hi", flags=("--jsonl",))
        failed, sent = map(json.loads, outcome.stdout.splitlines())
        assert failed["error"].startswith("not sent: a picture")
        assert (failed["text"], sent["images"]) == ("", [])

    def test_a_folder_of_them_is_a_line_each_of_one_run(self, chat: Chat, picture: Path) -> None:
        other = picture.with_name("b.png")
        Image.effect_noise((32, 32), 90).save(other)
        paths = [picture, picture.with_name("none.png"), other]
        entries = [[f'/image "{path}"', "caption", "/clear"] for path in paths]
        outcome = chat(*chain.from_iterable(entries), flags=("--jsonl",))
        rows = list(map(json.loads, outcome.stdout.splitlines()))
        assert [row["images"] for row in rows] == [[str(picture)], [], [str(other)]]
        assert all(line.startswith("recap: error: ") for line in outcome.stderr.splitlines())
        assert [row["error"] is None for row in rows] == [True, False, True]
        assert rows[2]["prompt_tokens"] == rows[0]["prompt_tokens"], "it begins anew"
        assert outcome.code == 1

    def test_standard_input_cannot_hold_one(self, chat: Chat) -> None:
        assert error(chat("/image -")).startswith("standard input holds the conversation")

    def test_a_model_may_take_none(self, chat: Chat, picture: Path) -> None:
        assert error(chat(f"/image '{picture}'", model="blind")) == "the model takes no pictures"

    def test_they_can_be_listed_and_taken_back(self, chat: Chat, picture: Path) -> None:
        image = f"/image '{picture}'"
        outcome = chat(image, "hi", image, "/images", "/undo", "/images", quiet=False)
        listed = [" ".join(line.split()) for line in outcome.stderr.splitlines()]
        assert listed[3:] == [
            f"turn 1 {picture} 64 x 48",
            f"queued {picture} 64 x 48 4 tokens",
            f"recap: not queued any more: {picture}",
            f"turn 1 {picture} 64 x 48",
        ]

    @pytest.mark.parametrize("typed", ["/image", "/image 'a.png"])
    def test_a_command_that_names_none_is_refused(self, chat: Chat, typed: str) -> None:
        assert error(chat(typed))


class TestCommands:
    """What they say is on stderr."""

    def test_help_names_them_all(self, chat: Chat) -> None:
        shown = chat("/help").stderr
        assert all(f"/{name}" in shown for name in COMMANDS)

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            ("/clear all", "/clear takes nothing, not 'all'"),
            ("/undo", "nothing was said yet"),
            ("/regen", "nothing was answered yet"),
            ("/save", "no file: /save FILE writes the conversation to it"),
            ("/load", "/load takes the file of a saved conversation"),
            ("/save ~nobody-of-that-name/x", "~nobody-of-that-name/x: "),
            ("/save a b", "one file, not 2: put quotes around a name with blanks"),
            ("/load none.json", "there is no none.json"),
            ("/set loud on", "there is no setting 'loud': /set takes max-tokens, drop-oldest, "),
            ("/set max-tokens 0", "max-tokens takes a number or auto, not '0'"),
            ("/set markdown", "markdown takes off or on, not ''"),
        ],
    )
    def test_what_cannot_be_done_is_said(self, chat: Chat, typed: str, message: str) -> None:
        assert error(chat(typed)).startswith(message)

    def test_undo_takes_the_last_turn_back(self, chat: Chat) -> None:
        outcome = chat("one", "two", "/undo", "/tokens", quiet=False)
        assert outcome.stderr.splitlines()[1:] == [
            "recap: taken back: two",
            "recap: ###................. 10 of 64 tokens (16%)".replace("#", "█").replace(".", "░"),
        ]

    def test_clear_forgets_everything(self, chat: Chat, picture: Path) -> None:
        outcome = chat("one", f"/image '{picture}'", "/clear", "two", "/stats", flags=("--jsonl",))
        assert json.loads(outcome.stdout.splitlines()[1])["images"] == []
        assert [line.split()[0] for line in outcome.stderr.splitlines()[-3:]] == [
            *("turn", "1", "MAT")
        ]

    def test_regen_answers_the_last_question_again(self, chat: Chat) -> None:
        outcome = chat("one", "/regen", "/tokens")
        assert outcome.stdout == "one \none \n"
        assert "10 of 64" in outcome.stderr

    def test_regen_keeps_the_old_answer_if_there_is_no_new_one(self, chat: Chat) -> None:
        drop, refuse = "/set drop-oldest on", "/set drop-oldest off"
        outcome = chat("one", drop, "two", refuse, "/regen", "/tokens", model="full")
        assert error(outcome).startswith("no room for it")
        assert "20 of 64" in outcome.stderr

    def test_system_is_shown_changed_and_removed(self, chat: Chat) -> None:
        outcome = chat("/system", "/system be kind", '/system ""', flags=("-s", "be brief"))
        assert outcome.stderr.splitlines() == [
            "recap: the system message is: be brief",
            "recap: the system message is: be kind",
            "recap: no system message",
        ]

    def test_a_system_message_that_is_no_text_is_refused(self, chat: Chat) -> None:
        outcome = chat("hello", flags=("-s", "be \udcff"))
        assert (outcome.code, outcome.stdout) == (1, "")
        assert error(outcome) == "--system is not UTF-8 text"
        outcome = chat("/system be \udcff", "/system", "hello")
        assert (outcome.code, outcome.stdout) == (1, "hello \n")
        assert outcome.stderr.splitlines() == [
            "recap: error: the system message is not UTF-8 text",
            "recap: no system message",
        ]

    def test_set_shows_what_holds(self, chat: Chat) -> None:
        changes = ("/set max-tokens 9", "/set drop-oldest on", "/set markdown on", "/set")
        shown = [line.split() for line in chat(*changes).stderr.splitlines()[-3:]]
        assert shown == [["max-tokens", "9"], ["drop-oldest", "on"], ["markdown", "on"]]

    def test_stats_are_a_table_by_turn(self, chat: Chat) -> None:
        lines = [line.split() for line in chat("a", "a b", "/stats").stderr.splitlines()]
        assert lines == [
            ["turn", "tokens", "first", "tok/s", "MAT", "read", "accepted", "from"],
            ["1", "2", "0.25", "s", "4.0", "2.00", "5", "of", "7", "suffix", "100%"],
            ["2", "4", "0.25", "s", "8.0", "2.00", "5", "of", "7", "suffix", "100%"],
            ["MAT", "by", "turn", "██"],
        ]

    @pytest.mark.parametrize("typed", ["/stats", "/images"])
    def test_nothing_to_show_is_no_error(self, chat: Chat, typed: str) -> None:
        outcome = chat(typed)
        assert (outcome.code, outcome.stderr[:10]) == (0, "recap: no ")

    def test_memory_says_what_was_learned(self, chat: Chat) -> None:
        shown = chat("/memory").stderr
        assert "12 keys of two and three tokens" in shown
        assert "fake.safetensors" in shown

    def test_a_full_context_names_the_ways_out(self, chat: Chat) -> None:
        message = error(chat("one", "two", model="full"))
        assert message.startswith("no room for it; ")
        for way in ("/clear", "/undo", "/set drop-oldest on"):
            assert way in message

    @pytest.mark.parametrize("way", ["/clear", "/undo", "/set drop-oldest on"])
    def test_the_ways_out_lead_out(self, chat: Chat, way: str) -> None:
        assert chat("one", way, "two", model="full").stdout == "one \ntwo \n"


class TestTranscripts:
    """Saved as the conversation goes, or when asked; nothing else is overwritten."""

    def test_it_is_written_after_every_turn(
        self, chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "talk.json"
        written: list[list[str]] = []

        def save(path: Path, transcript: Any) -> None:
            written.append([exchange.answer for exchange in transcript.exchanges])

        monkeypatch.setattr(sessions, "save_transcript", save)
        chat("one", "two", "/undo", flags=("--save", str(path)))
        assert written == [[], ["one "], ["one ", "two "], ["one "]]

    def test_clearing_leaves_it_until_the_next_answer(self, chat: Chat, tmp_path: Path) -> None:
        path = tmp_path / "talk.json"
        chat("one", "/clear", flags=("--save", str(path)))
        assert json.loads(path.read_text()) == [["one", "one "]]

    def test_a_conversation_goes_on(self, chat: Chat, tmp_path: Path) -> None:
        path = tmp_path / "talk.json"
        chat("one", flags=("--save", str(path)))
        chat("two", flags=("--save", str(path), "--resume", str(path)))
        assert json.loads(path.read_text()) == [["one", "one "], ["two", "two "]]

    def test_it_goes_on_with_the_model_that_it_was_held_with(
        self, chat: Chat, recap: Recap, stdin: Stdin, tmp_path: Path
    ) -> None:
        path = tmp_path / "talk.json"
        chat("one", flags=("--save", str(path)))
        stdin(b"two")
        outcome = recap("chat", "--resume", str(path))
        assert outcome.stdout == "two \n"
        assert outcome.stderr.startswith("recap: loading echo ...\n")
        assert "goes on with" not in outcome.stderr

    @pytest.mark.parametrize("named", ["flag", "environment"])
    def test_another_model_that_is_named_is_taken_and_said(
        self,
        chat: Chat,
        recap: Recap,
        stdin: Stdin,
        tmp_path: Path,
        named: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path = tmp_path / "talk.json"
        chat("one", flags=("--save", str(path)))
        stdin(b"two")
        flags = ("-m", "noted") if named == "flag" else ()
        if named == "environment":
            monkeypatch.setenv("RECAP_MODEL", "noted")
        outcome = recap("chat", "--resume", str(path), *flags)
        assert f"{path} was held with echo, and goes on with noted" in outcome.stderr

    def test_commands_do_the_same(self, chat: Chat, tmp_path: Path) -> None:
        path = tmp_path / "a talk.json"
        outcome = chat("one", f"/save '{path}'", quiet=False)
        assert outcome.stderr.splitlines()[1:] == [f"recap: saved 1 turn to {path}"]
        chat(f"/load '{path}'", "two", f"/save '{path}'")
        assert json.loads(path.read_text()) == [["one", "one "], ["two", "two "]]

    def test_other_files_are_not_overwritten(self, chat: Chat, tmp_path: Path) -> None:
        path = tmp_path / "letter.txt"
        path.write_text("dear")
        assert chat("one", flags=("--save", str(path))).code == 2
        assert "is there already" in error(chat("one", f"/save {path}"))
        outcome = chat("one", flags=("--save", str(tmp_path)))
        assert outcome.code == 2
        assert "is a folder: name a file" in outcome.stderr
        assert path.read_text() == "dear"

    def test_one_that_is_missing_ends_it(self, chat: Chat) -> None:
        assert error(chat("one", flags=("--resume", "none.json"))) == "there is no none.json"

    def test_a_picture_whose_name_it_could_not_hold_is_refused_before_anything_is_asked(
        self, chat: Chat, picture: Path, tmp_path: Path
    ) -> None:
        odd = tmp_path / "b\udcff.png"
        odd.write_bytes(picture.read_bytes())
        outcome = chat("one", flags=("--save", str(tmp_path / "talk.json"), "-i", str(odd)))
        assert (outcome.code, outcome.stdout) == (1, "")
        assert error(outcome).endswith("talk.json could not hold it; rename the picture")

    def test_a_folder_that_is_missing_is_said_before_anything_is_asked(self, chat: Chat) -> None:
        outcome = chat("one", flags=("--save", "none/talk.json"))
        assert (outcome.stdout, error(outcome)) == ("", "none/talk.json: No such file or directory")


class TestHistory:
    """What was typed stays the user's own."""

    def test_only_the_user_may_read_it(self) -> None:
        path = chat_input.history_path()
        path.parent.mkdir(parents=True)
        path.touch(0o644)
        history = chat_input.open_history(path, pytest.fail)
        history.append_string("caf\udce9")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "+caf?" in path.read_text()

    def test_a_folder_that_cannot_be_made_costs_only_the_history(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        told: list[str] = []
        chat_input.open_history(tmp_path / "file" / "history", told.append).append_string("one")
        assert "--no-history" in told[0]

    def test_a_full_disk_costs_only_the_history(self) -> None:
        full = Path("/dev/full")
        if not full.exists():
            pytest.skip("no /dev/full here")
        chat_input.StoredHistory(str(full)).store_string("one")
