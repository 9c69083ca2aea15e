"""The file of a conversation: what is written comes back; what does not fit is refused by name."""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from engine.errors import TranscriptError
from engine.images import PictureSource, open_picture
from engine.prompts import Message
from engine.transcript import Exchange, Transcript, load_transcript, save_transcript
from tests.models import picture


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "talk.json"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    picture(30, 20, 1).save(path)
    return path


def asked(text: str, *files: Path, template: bool = False) -> Message:
    pictures = [open_picture(str(file)) for file in files]
    images = tuple(each.image for each in pictures)
    return Message("user", text, images, template, tuple(each.origin for each in pictures))


def exchange(question: Message, answer: str = "A circle.", **changes: Any) -> Exchange:
    measures = {"mean_acceptance_length": 1.5, "sources": {"suffix": {"drafted": 3, "accepted": 1}}}
    whole = Exchange(question, answer, (5, 6, 7), "stop", 20, 11, measures)
    return replace(whole, **changes)


def talk(*exchanges: Exchange, **changes: Any) -> Transcript:
    return replace(Transcript("demo", "Be brief.", list(exchanges)), **changes)


def test_a_conversation_comes_back_as_it_was(file: Path, photo: Path) -> None:
    said = talk(
        exchange(asked('What "is"\nthis? é 👍🏽 \0', photo)),
        exchange(asked("{1} and {2}?", photo, photo, template=True), "", finish_reason="length"),
        exchange(asked("Go on."), "It", finish_reason="interrupt"),
        dropped=1,
    )
    save_transcript(file, said)
    back = load_transcript(file)
    assert back == said
    assert [image.size for image in back.exchanges[1].question.images] == [(30, 20)] * 2


def test_nothing_said_and_no_system_message(file: Path) -> None:
    save_transcript(file, talk(system=None))
    assert load_transcript(file) == talk(system=None)


def test_the_file_is_json_a_line_an_exchange_without_pixels(file: Path, photo: Path) -> None:
    save_transcript(file, talk(exchange(asked("What?", photo)), exchange(asked("Why?"))))
    assert len(file.read_bytes().splitlines()) == 4
    record = orjson.loads(file.read_bytes())
    assert (record["format"], record["version"]) == ("recap conversation", 1)
    (shown,) = record["exchanges"][0]["question"]["pictures"]
    assert shown["source"] == str(photo)
    assert len(shown["sha256"]) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_pictures_are_found_from_another_folder(
    file: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photo.parent)
    save_transcript(file, talk(exchange(asked("What?", Path(photo.name)))))
    monkeypatch.chdir("/")
    assert load_transcript(file).exchanges[0].question.images[0].size == (30, 20)


def test_a_picture_that_is_gone_is_named(file: Path, photo: Path) -> None:
    save_transcript(file, talk(exchange(asked("Hi.")), exchange(asked("What?", photo))))
    photo.unlink()
    with pytest.raises(TranscriptError, match=rf"talk\.json: picture of turn 2: {photo}: no such"):
        load_transcript(file)


def test_a_picture_that_has_changed_is_named(file: Path, photo: Path) -> None:
    save_transcript(file, talk(exchange(asked("What?", photo))))
    Image.new("RGB", (30, 20)).save(photo)
    with pytest.raises(TranscriptError, match=rf"turn 1: {photo} has changed since"):
        load_transcript(file)


def test_a_picture_whose_name_json_cannot_hold_is_named(file: Path) -> None:
    sources = (PictureSource("/home/me/b\udcff.png", "0" * 64),)
    question = Message("user", "What?", (picture(30, 20),), sources=sources)
    with pytest.raises(TranscriptError, match=r"the name of /home/me/b\\udcff\.png is not UTF-8"):
        save_transcript(file, talk(exchange(question)))
    assert not file.exists()


@pytest.mark.parametrize("sources", [(), (PictureSource("-", "0" * 64),)])
def test_a_picture_that_cannot_be_found_again_is_refused(
    file: Path, sources: tuple[PictureSource, ...]
) -> None:
    question = Message("user", "What?", (picture(30, 20),), sources=sources)
    with pytest.raises(TranscriptError, match="came from no file"):
        save_transcript(file, talk(exchange(question)))
    assert not file.exists()


def test_what_is_no_text_is_refused(file: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot write the conversation"):
        save_transcript(file, replace(talk(exchange(asked("Hi."))), system="be \udcff"))
    assert not file.exists()


def test_what_cannot_be_written_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_transcript(file, talk(exchange(asked("Hi."))))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TranscriptError, match="No space left on device; check its folder"):
            save_transcript(file, talk())
    assert load_transcript(file) == talk(exchange(asked("Hi.")))
    assert list(file.parent.iterdir()) == [file]


def test_no_folder_no_file(file: Path) -> None:
    with pytest.raises(TranscriptError, match="No such file"):
        save_transcript(file.parent / "missing" / "talk.json", talk())
    with pytest.raises(TranscriptError, match=r"cannot read .*talk\.json: No such file"):
        load_transcript(file)


def test_folders_and_devices_are_left_alone(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(TranscriptError, match="not a regular file"):
            save_transcript(path, talk())
        with pytest.raises(TranscriptError, match="not a regular file"):
            load_transcript(path)


def test_a_link_stays_a_link(file: Path) -> None:
    link = file.with_name("link.json")
    link.symlink_to(file)
    save_transcript(link, talk())
    assert link.is_symlink()
    assert load_transcript(file) == talk()


def written(file: Path, photo: Path) -> Any:
    save_transcript(file, talk(exchange(asked("What?", photo)), exchange(asked("Why?"))))
    return orjson.loads(file.read_bytes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b'{"format": "recap conv', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[]", "not a conversation that recap wrote"),
        (b'{"format": "other"}', "not a conversation that recap wrote"),
        (b'{"format": "recap conversation", "version": 2}', "format version 2, .* reads 1"),
    ],
)
def test_other_files_are_refused(file: Path, content: bytes, said: str) -> None:
    file.write_bytes(content)
    with pytest.raises(TranscriptError, match=said):
        load_transcript(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["model"], None),
        (["system"], 5),
        (["dropped"], -1),
        (["dropped"], 3),
        (["exchanges"], {}),
        (["exchanges", 1], []),
        (["exchanges", 1, "answer"], None),
        (["exchanges", 1, "token_ids"], [1, "x"]),
        (["exchanges", 1, "finish_reason"], "tired"),
        (["exchanges", 1, "prompt_tokens"], "many"),
        (["exchanges", 1, "prompt_tokens"], True),
        (["exchanges", 1, "measures"], []),
        (["exchanges", 1, "measures"], {"sources": 3}),
        (["exchanges", 1, "measures"], {"sources": {"token": 3}}),
        (["exchanges", 1, "measures"], {"ttft_s": "soon"}),
        (["exchanges", 1, "question"], "Why?"),
        (["exchanges", 1, "question", "text"], None),
        (["exchanges", 0, "question", "pictures"], [{"source": "a.png"}]),
        (["exchanges", 0, "question", "pictures", 0], "a.png"),
    ],
)
def test_a_damaged_file_is_refused(file: Path, photo: Path, path: list[Any], value: Any) -> None:
    record = written(file, photo)
    place = record
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file.write_bytes(orjson.dumps(record))
    with pytest.raises(TranscriptError, match=r"talk\.json is damaged: "):
        load_transcript(file)
