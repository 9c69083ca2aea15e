"""`recap generate` off a terminal: where the prompt comes from, and what goes where."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from engine.catalogue import MODELS
from engine.events import Notice
from engine.sizes import PixelLimits
from engine.stats import DecodeStats
from recap_cli import sessions
from tests.recap_cli.conftest import ROOT, Outcome
from tests.recap_cli.fakes import FakeSession

Recap = Callable[..., Outcome]
Stdin = Callable[[bytes], None]

pytestmark = pytest.mark.usefixtures("fakes")


def echo(recap: Recap, *arguments: str) -> Outcome:
    """An answer that repeats the prompt."""
    return recap("generate", "-m", "echo", "-q", *arguments)


def test_the_answer_alone_is_on_stdout(recap: Recap) -> None:
    outcome = recap("generate", "-m", "noted", "hello")
    assert outcome == Outcome(
        0,
        "hello \n",
        "recap: loading noted ...\n"
        "recap: note: the session has a note\n"
        "recap: note: the memory has a note\n",
    )


def test_quiet_leaves_the_answer_only(recap: Recap) -> None:
    assert recap("generate", "-m", "noted", "-q", "hello") == Outcome(0, "hello \n", "")


def test_stats_are_shown_off_a_terminal_when_asked_for(recap: Recap) -> None:
    outcome = echo(recap, "--stats", "a b c")
    shown = [line.split(maxsplit=1) for line in outcome.stderr.splitlines()]
    assert {label: figures.strip() for label, figures in shown} == {
        "tokens": "6 (stop) after 7 prompt tokens",
        "time": "first token 0.25 s, then 12.0 tokens/s",
        "accepted": "3 of 3 drafted, MAT 2.00",
        "sources": "suffix 3",
        "tokens/pass": "2 █ 3",
    }


def test_no_stream_gives_the_same_answer(recap: Recap) -> None:
    assert echo(recap, "--no-stream", "a b") == echo(recap, "a b") == Outcome(0, "a b \n", "")


def test_off_a_terminal_text_is_not_touched(recap: Recap) -> None:
    outcome = recap("generate", "-m", "rude", "-q", "hello")
    assert outcome.stdout == "[bold]loud[/bold] \x1b[31mred\x1b[0m \x07:smile: ok\n"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Two pictures that are no scenes of the demo model."""
    paths = [tmp_path / "a b.png", tmp_path / "[ü].jpg"]
    for path in paths:
        Image.effect_noise((64, 48), 90).save(path)
    return paths


class TestPrompt:
    """Where it comes from."""

    def test_a_file(self, recap: Recap, tmp_path: Path) -> None:
        file = tmp_path / "a [prompt] ü.txt"
        file.write_text("from a file\n", encoding="utf-8-sig")
        assert echo(recap, "--file", str(file)).stdout == "from a file \n"

    @pytest.mark.parametrize("arguments", [[], ["-"], ["-f", "-"]])
    def test_standard_input(self, recap: Recap, stdin: Stdin, arguments: list[str]) -> None:
        stdin(b"from stdin\r\n")
        assert echo(recap, *arguments).stdout == "from stdin \n"

    def test_standard_input_is_not_touched_when_there_is_a_prompt(
        self, recap: Recap, stdin: Stdin
    ) -> None:
        stdin(b"\xff")
        assert echo(recap, "argument").stdout == "argument \n"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "standard input is empty"),
            (b" \n", "standard input is empty"),
            (b"caf\xe9", "standard input is not UTF-8 text (byte 3)"),
        ],
    )
    def test_what_is_no_prompt_fails_the_request(
        self, recap: Recap, stdin: Stdin, content: bytes, message: str
    ) -> None:
        stdin(content)
        outcome = echo(recap)
        assert outcome.code == 1
        assert outcome.stderr.startswith(f"recap: error: {message}")

    def test_an_argument_that_is_no_text_fails_the_request(self, recap: Recap) -> None:
        outcome = echo(recap, "caf\udce9")
        assert outcome == Outcome(1, "", "recap: error: the prompt is not UTF-8 text\n")

    def test_a_missing_file_is_wrong_usage(self, recap: Recap, tmp_path: Path) -> None:
        file = tmp_path / "none"
        message = f"cannot read the prompt from {file}: No such file or directory"
        assert echo(recap, "-f", str(file)) == Outcome(2, "", f"recap: error: {message}\n")

    def test_two_prompts_are_wrong_usage(self, recap: Recap) -> None:
        assert echo(recap, "-f", "file", "argument").code == 2

    def test_no_prompt_on_a_terminal_is_wrong_usage(
        self, recap: Recap, stdin: Stdin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin(b"")
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        outcome = echo(recap)
        assert outcome.code == 2
        assert outcome.stderr.startswith("recap: error: no prompt: give a prompt as an argument")

    @pytest.mark.parametrize("arguments", [["-i", "-"], ["-i", "-", "-"], ["-i-", "-i-", "hi"]])
    def test_standard_input_is_not_read_twice(
        self, recap: Recap, stdin: Stdin, arguments: list[str]
    ) -> None:
        stdin(b"GIF89a")
        outcome = echo(recap, *arguments)
        assert outcome.code == 2
        assert "standard input holds" in outcome.stderr


class TestPictures:
    """They reach the session, or the request fails; none is dropped."""

    def test_all_are_given_in_order(self, recap: Recap, pictures: list[Path]) -> None:
        flags = [flag for path in pictures for flag in ("-i", str(path))]
        record = json.loads(echo(recap, "--json", *flags, "hi").stdout)
        assert record["images"] == [str(path) for path in pictures]
        assert record["image_tokens"] == 4 * len(pictures)

    def test_one_may_come_from_standard_input(
        self, recap: Recap, stdin: Stdin, pictures: list[Path]
    ) -> None:
        stdin(pictures[0].read_bytes())
        record = json.loads(echo(recap, "--json", "-i", "-", "hi").stdout)
        assert (record["images"], record["image_tokens"]) == (["-"], 4)

    def test_one_bad_picture_fails_the_request(self, recap: Recap, pictures: list[Path]) -> None:
        pictures[1].write_bytes(b"")
        outcome = echo(recap, "-i", str(pictures[0]), "-i", str(pictures[1]), "hi")
        assert (outcome.code, outcome.stdout) == (1, "")
        assert outcome.stderr.startswith(f"recap: error: {pictures[1]}: empty")

    def test_a_large_one_names_the_flag_that_takes_it(
        self, recap: Recap, pictures: list[Path]
    ) -> None:
        flags = ["-i", str(pictures[0]), "--max-image-pixels", "10"]
        outcome = echo(recap, *flags, "hi")
        assert outcome.code == 1
        assert "--max-image-pixels 0" in outcome.stderr

    def test_a_background_that_is_no_colour_is_wrong_usage(self, recap: Recap) -> None:
        outcome = echo(recap, "--background", "loud", "hi")
        assert outcome.code == 2
        assert "--background 'loud'" in outcome.stderr

    def test_the_first_frame_of_an_animation_is_used_with_a_note(
        self, recap: Recap, tmp_path: Path
    ) -> None:
        path = tmp_path / "moving.gif"
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
        frames[0].save(path, save_all=True, append_images=frames[1:])
        outcome = recap("generate", "-m", "echo", "-i", str(path), "hi")
        assert outcome.code == 0
        [note] = [line for line in outcome.stderr.splitlines() if "note" in line]
        assert note == f"recap: note: {path}: first frame of 2 used"

    def test_the_demo_model_says_once_which_pictures_it_knows(
        self, recap: Recap, pictures: list[Path]
    ) -> None:
        flags = [flag for path in pictures for flag in ("-i", str(path))]
        stderr = recap("generate", "-m", "demo", *flags, "hi").stderr
        assert stderr.count("HuggingFaceTB/SmolVLM-256M-Instruct") == 1
        assert stderr.count("Qwen/Qwen2.5-VL-7B-Instruct") == 1

    def test_the_demo_model_says_nothing_about_a_scene(self, recap: Recap) -> None:
        scene = ROOT / "engine" / "demo" / "scene.png"
        outcome = recap("generate", "-i", str(scene), "hi")
        assert outcome == Outcome(0, "hi \n", "recap: loading demo ...\n")


class TestJson:
    """One object, whatever happens."""

    def test_an_answer(self, recap: Recap) -> None:
        outcome = echo(recap, "--json", "--system", "be kind", "a b")
        record = json.loads(outcome.stdout)
        assert outcome.code == 0
        assert outcome.stdout.count("\n") == 1
        wanted = {
            "text": "a b ",
            "token_ids": [1, 2, 3, 4],
            "finish_reason": "stop",
            "model": "echo",
            "method": "recap",
            "device": "cpu",
            "dtype": "float32",
            "prompt": "a b",
            "system": "be kind",
            "images": [],
            "error": None,
            "notices": [],
            "prompt_tokens": 7,
            "image_tokens": 0,
            "new_tokens": 4,
            "mean_acceptance_length": 2.0,
        }
        assert record.items() >= wanted.items()
        assert set(DecodeStats().measures()) < set(record)
        assert {"recap", "python", "torch", "transformers"} == set(record["versions"])

    def test_notices_are_kept(self, recap: Recap) -> None:
        outcome = recap("generate", "-m", "noted", "--json", "-q", "a")
        notices = ["the session has a note", "the memory has a note"]
        assert json.loads(outcome.stdout)["notices"] == notices

    @pytest.mark.parametrize(
        ("model", "text", "error"),
        [
            ("broken", "a b ", "the model broke: ask something else"),
            ("missing", "", "there is no model missing: name another one"),
            ("buggy", "", "[oops]"),
        ],
    )
    def test_a_failure_has_the_same_keys(
        self, recap: Recap, model: str, text: str, error: str
    ) -> None:
        good = json.loads(echo(recap, "--json", "a b c").stdout)
        outcome = recap("generate", "-m", model, "--json", "-q", "a b c")
        record = json.loads(outcome.stdout)
        assert outcome.code == 1
        assert list(record) == list(good)
        assert (record["text"], record["error"]) == (text, error)
        assert record["finish_reason"] is record["new_tokens"] is None

    def test_wrong_usage_is_told_too(self, recap: Recap) -> None:
        outcome = echo(recap, "--json", "-f", "nowhere", "a")
        assert outcome.code == 2
        assert json.loads(outcome.stdout)["error"].startswith("two prompts")

    def test_bytes_that_are_no_text_do_not_break_it(self, recap: Recap) -> None:
        outcome = recap("generate", "-m", "missing", "--json", "-q", "-s", "\udcff", "a")
        assert json.loads(outcome.stdout)["system"] == "?"


class TestDryRun:
    """The request is read and counted, and nothing is computed."""

    def test_the_prompt_is_on_stdout_and_the_counts_on_stderr(
        self, recap: Recap, pictures: list[Path]
    ) -> None:
        outcome = recap("generate", "-m", "missing", "--dry-run", "-i", str(pictures[0]), "hi you")
        assert outcome == Outcome(
            0,
            "<user>hi you\n",
            "recap: loading missing ...\nrecap: 3 text + 4 image + 20 answer tokens of 64\n",
        )

    def test_quiet_leaves_the_prompt(self, recap: Recap) -> None:
        assert echo(recap, "--dry-run", "hi") == Outcome(0, "<user>hi\n", "")

    def test_as_json(self, recap: Recap) -> None:
        record = json.loads(echo(recap, "--dry-run", "--json", "hi").stdout)
        assert record["rendered_prompt"] == "<user>hi"
        counts = ("prompt_tokens", "image_tokens", "max_tokens", "context_length")
        assert [record[name] for name in counts] == [7, 0, 20, 64]
        assert (record["text"], record["finish_reason"], record["error"]) == ("", None, None)


def test_flags_of_the_request_reach_the_session(
    recap: Recap, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    def make_request(prompt: str, system: str | None, images: object, **options: object) -> object:
        seen.update(options)
        return SimpleNamespace(prompt=prompt, images=images)

    monkeypatch.setattr(sessions, "make_request", make_request)
    flags = ["--stop", "a", "--stop", "\n", "--max-pixels", "9", "--min-pixels", "4", "--template"]
    assert echo(recap, *flags, "hi").code == 0
    assert list(seen["stop"]) == ["a", "\n"]  # type: ignore[call-overload]
    assert (seen["pixels"], seen["template"]) == (PixelLimits(4, 9), True)


def test_impossible_limits_of_pixels_are_wrong_usage(recap: Recap) -> None:
    outcome = echo(recap, "--max-pixels", "4", "--min-pixels", "9", "hi")
    assert (outcome.code, outcome.stderr) == (
        2,
        "recap: error: --min-pixels 9 is above --max-pixels 4\n",
    )


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--stop", ""], "--stop '' would end every answer before it began; give it a text"),
        (["--stop", "a", "--stop", ""], "--stop '' would end every answer"),
        (["--device", "cpu", "--device-map", "auto"], "--device cpu and --device-map exclude"),
        (["--device-map", "auto", "--device", "cpu"], "--device cpu and --device-map exclude"),
    ],
)
def test_impossible_flags_are_refused_before_anything_is_opened(
    recap: Recap, flags: list[str], reason: str
) -> None:
    outcome = echo(recap, *flags, "-i", "missing.png", "hi")
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"recap: error: {reason}")


def test_a_device_map_alone_is_good(recap: Recap) -> None:
    assert echo(recap, "--device-map", "auto", "hi").code == 0
    assert echo(recap, "--device", "auto", "--device-map", "auto", "hi").code == 0


def test_a_note_of_the_memory_is_shown_also_when_the_request_fails(
    recap: Recap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSession, "save_memory", lambda _: [Notice("not kept")])
    outcome = recap("generate", "-m", "broken", "a b c")
    assert outcome.code == 1
    note, error = outcome.stderr.splitlines()[-2:]
    assert note == "recap: note: not kept"
    assert error.startswith("recap: error: the model broke")


def test_list_models_shows_each_with_its_family_and_licence(recap: Recap) -> None:
    outcome = recap("generate", "--list-models")
    assert (outcome.code, outcome.stderr) == (0, "")
    head, *rows = [line.split() for line in outcome.stdout.splitlines()]
    assert head == ["NAME", "FAMILY", "SIZE", "LICENCE", "HERE", "MODEL"]
    assert [row[0] for row in rows] == [model.alias for model in MODELS]
    assert [row[-1] for row in rows] == [model.id for model in MODELS]
    by_name = {row[0]: row for row in rows}
    assert by_name["qwen2.5-vl-7b"][1:-2] == ["Qwen2.5-VL", "8.3B", "Apache-2.0"]


def test_list_models_in_json_is_an_array_for_scripts(recap: Recap) -> None:
    outcome = recap("generate", "--list-models", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    by_name = {row.pop("name"): row for row in json.loads(outcome.stdout)}
    assert list(by_name) == [model.alias for model in MODELS]
    assert by_name["qwen2.5-vl-7b"] == {
        "family": "Qwen2.5-VL",
        "size": "8.3B",
        "licence": "Apache-2.0",
        "here": False,
        "model": "Qwen/Qwen2.5-VL-7B-Instruct",
    }
