"""`recap bench` on the demo model: what is asked, what comes out, and what an interrupt leaves."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import kernels
from engine.bench import answers
from engine.bench.contenders import contenders
from engine.bench.recipes import SETS
from tests.models import picture
from tests.recap_cli.conftest import Outcome
from tests.zoo import Zoo

Recap = Callable[..., Outcome]
SHORT = ("bench", "--methods", "recap:16", "-n", "6")
"""A run of four contenders, six tokens an answer."""


def document(outcome: Outcome) -> Any:
    """The JSON document on standard output."""
    assert outcome.code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def lines(path: Path, *rows: Any) -> str:
    """A file of JSON Lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


class TestResults:
    """What comes out."""

    def test_every_contender_answers_every_prompt(self, recap: Recap, tmp_path: Path) -> None:
        outcome = recap(*SHORT, "--limit", "2", "--repetitions", "2", "--format", "json")
        found = document(outcome)
        names = ["plain", "plain-control", "transformers", "recap:16"]
        assert [row["name"] for row in found["contenders"]] == names
        assert [row["memory"] for row in found["contenders"]] == ["none", "none", "none", "cold"]
        assert len(found["records"]) == 4 * 2 * 2
        assert {record["error"] for record in found["records"]} == {None}
        assert {record["difference"] for record in found["records"]} == {None}
        assert found["settings"] | {"started": "", "prompts": "", "peak_memory": ""} == {
            "model": "demo",
            "device": "cpu",
            "dtype": "float32",
            "compile": False,
            "operators": kernels.promising(),
            "max_tokens": 6,
            "repetitions": 2,
            "warmup": 1,
            "memory_start": "cold",
            "workload": "scenes of the demo model, 2 tasks",
            "prompts": "",
            "turns": "all",
            "peak_memory": "",
            "started": "",
        }
        assert found["versions"]["torch"]
        assert not (tmp_path / "memories").exists(), "the user's memory is not touched"

    def test_progress_is_on_standard_error(self, recap: Recap) -> None:
        outcome = recap(*SHORT, "--limit", "1")
        assert outcome.code == 0
        assert outcome.stdout.startswith("Speed\n")
        assert outcome.stderr.splitlines() == [
            "recap: loading demo ...",
            "recap: warming up: 4 requests",
            "recap: measuring: 4 requests",
        ]

    def test_a_warm_start_is_rehearsed(self, recap: Recap) -> None:
        outcome = recap(*SHORT, "--limit", "1", "--memory-start", "warm", "--format", "json")
        assert document(outcome)["contenders"][3]["memory"] == "warm"
        assert "recap: rehearsing: 2 requests\n" in outcome.stderr

    def test_a_file_gets_the_results_and_nothing_else_is_left(
        self, recap: Recap, tmp_path: Path
    ) -> None:
        folder = tmp_path / "results"
        folder.mkdir()
        outcome = recap(*SHORT, "--limit", "1", "--format", "csv", "-o", str(folder / "a.csv"))
        assert (outcome.code, outcome.stdout) == (0, "")
        assert [path.name for path in folder.iterdir()] == ["a.csv"]
        assert (folder / "a.csv").read_text().startswith("contender,")

    def test_what_is_no_file_gets_them_too(self, recap: Recap) -> None:
        assert recap(*SHORT, "--limit", "1", "-o", "/dev/null").code == 0


@pytest.mark.parametrize("command", ["cost", "report"])
def test_flags_in_front_of_a_command_are_refused(recap: Recap, command: str) -> None:
    outcome = recap("bench", "--memory-start", "warm", command, "results.json")
    message = f"--memory-start in front of {command} is not for it; flags go behind {command}"
    assert outcome == Outcome(2, "", f"recap: error: {message}\n")


class TestWork:
    """What is asked."""

    def test_a_file_of_prompts(self, recap: Recap, tmp_path: Path) -> None:
        file = lines(
            tmp_path / "my prompts.jsonl",
            {"id": "a", "category": "talk", "turns": ["How many shapes?", "And what colour?"]},
            {"id": "b", "category": "talk", "turns": ["Describe it."], "image": "scene.png"},
        )
        picture(84, 84, seed=1).save(tmp_path / "scene.png")
        found = document(recap(*SHORT, "--prompts", file, "--format", "json"))
        assert found["tasks"] == [
            {"id": "a", "category": "talk", "turns": 2},
            {"id": "b", "category": "talk", "turns": 1},
        ]
        assert found["settings"]["workload"] == "my prompts.jsonl, 2 tasks"
        assert len(found["records"]) == 4 * 3
        assert {r["image_tokens"] > 0 for r in found["records"] if r["task"] == "b"} == {True}

    def test_first_turns_only(self, recap: Recap, tmp_path: Path) -> None:
        file = lines(tmp_path / "prompts.jsonl", {"turns": ["How many?", "Which?"]})
        flags = ("--prompts", file, "--turns", "first", "--format", "json")
        found = document(recap(*SHORT, *flags))
        assert {record["turn"] for record in found["records"]} == {0}
        assert found["settings"]["turns"] == "first"

    def test_a_folder_of_pictures(self, recap: Recap, tmp_path: Path) -> None:
        folder = tmp_path / "photos"
        folder.mkdir()
        for name in ("b\udcff.png", "a.png"):
            picture(84, 84, seed=1).save(folder / name)
        flags = ("--images", str(folder), "--prompt", "What is it?", "--format", "json")
        found = document(recap(*SHORT, *flags))
        assert [task["id"] for task in found["tasks"]] == ["a.png", r"b\udcff.png"]
        assert found["settings"]["workload"] == '"What is it?" about photos, 2 tasks'

    def test_a_text_model_needs_prompts(self, recap: Recap, zoo: Zoo) -> None:
        outcome = recap(*SHORT, "-m", str(zoo.folder_of("llama", None)))
        assert outcome.code == 2
        assert "only reads text: name prompts with --prompts" in outcome.stderr

    def test_the_help_names_every_set(self, recap: Recap, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "400")
        told = recap("bench", "--help").stdout
        assert all(name in told for name in SETS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--methods", "eagle"), "no method 'eagle'; choose from"),
        (("--nodes", "4,x"), "--nodes 4,x: give sizes, such as 4,8,16"),
        (("--resume",), "--resume goes on with a run that has -o FILE"),
        (("--images", "."), "--images FOLDER and --prompt TEXT go together"),
        (("--prompt", "What?"), "--images FOLDER and --prompt TEXT go together"),
        (("--prompts", "a", "--set", "mme"), "--prompts, --images and --set exclude each other"),
        (("--set-folder", "."), "--set-folder is where the files of a --set are"),
        (("--set", "imagenet"), "no set 'imagenet'; choose from"),
        (("--prompts", "none.jsonl"), "cannot read prompts from none.jsonl"),
        (("-o", "none/a.json"), "none/a.json: there is no such folder"),
        (("--plot", "a.gif"), "a.gif: charts are written as"),
        (("--memory-start", "hot"), "there is no token memory hot; start cold, warm"),
        (("--limit", "0"), "Invalid value for '--limit'"),
    ],
)
def test_wrong_usage_is_one_line(recap: Recap, flags: tuple[str, ...], message: str) -> None:
    outcome = recap(*SHORT, *flags)
    assert (outcome.code, outcome.stdout) == (2, "")
    error = outcome.stderr.splitlines()[-1]
    assert error.startswith(f"recap: error: {message}")


def test_the_flags_know_the_engine_s_words() -> None:
    assert [each.name for each in contenders(["default"])] == [each.name for each in contenders([])]


class TestFailures:
    """Counted and named, never the end."""

    def test_a_bad_picture_fails_its_prompt(self, recap: Recap, tmp_path: Path) -> None:
        (tmp_path / "none.png").write_text("no picture")
        file = lines(
            tmp_path / "prompts.jsonl",
            {"id": "bad", "turns": ["What?"], "image": "none.png"},
            {"id": "good", "turns": ["What?"]},
        )
        found = document(recap(*SHORT, "--prompts", file, "--format", "json"))
        errors = {r["task"]: r["error"] for r in found["records"]}
        assert "none.png" in errors["bad"]
        assert errors["good"] is None
        assert {row["failed"] for row in found["contenders"]} == {None}

    def test_nothing_answered_is_a_failure(self, recap: Recap, tmp_path: Path) -> None:
        (tmp_path / "none.png").write_text("no picture")
        row = {"id": "bad", "turns": ["What?"], "image": "none.png"}
        file = lines(tmp_path / "prompts.jsonl", row)
        outcome = recap(*SHORT, "--prompts", file, "--format", "json")
        assert outcome.code == 1
        assert "recap: error: not one request was answered: " in outcome.stderr
        assert all(row["failed"] for row in json.loads(outcome.stdout)["contenders"])


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sends signals to this process while it answers a request in our loop, the n-th of all."""

    def arrange(request: int, *signals: signal.Signals) -> None:
        asked: list[None] = []

        def answer(*arguments: Any) -> answers.Answer:
            asked.append(None)
            if len(asked) == request:
                for signum in signals:
                    os.kill(os.getpid(), signum)
            return answers.answer(*arguments)

        monkeypatch.setattr("engine.bench.protocol.answer", answer)

    return arrange


WARM_UP = 3
"""Requests in our loop that warm up, of SHORT's contenders."""


class TestInterrupts:
    """What an interrupt leaves, and how it goes on."""

    def test_what_is_finished_is_kept_and_the_run_can_be_resumed(
        self, recap: Recap, interrupted: Callable[..., None], tmp_path: Path
    ) -> None:
        results = tmp_path / "results.json"
        partial = tmp_path / "results.json.partial"
        command = (*SHORT, "--limit", "2", "--format", "json", "-o", str(results))
        interrupted(WARM_UP + 3, signal.SIGINT)
        outcome = recap(*command)
        assert (outcome.code, outcome.stdout) == (130, "")
        kept = f"recap: 4 of 8 requests are finished and kept in {partial}; the same command with"
        assert outcome.stderr.splitlines()[-1].startswith(kept)
        assert not results.exists()

        refused = recap(*command)
        assert refused.code == 2
        assert f"{partial} holds an interrupted run: go on with --resume" in refused.stderr
        other = recap(*command, "--repetitions", "2", "--resume")
        assert other.code == 2
        assert f"{partial} is of a run with repetitions 1, not 2" in other.stderr
        shown = recap("bench", "report", str(partial), "--format", "jsonl")
        assert len(shown.stdout.splitlines()) == 4

        resumed = recap(*command, "--resume")
        assert resumed.code == 0
        assert "recap: measuring: 4 requests\n" in resumed.stderr
        records = json.loads(results.read_text())["records"]
        assert len({(r["contender"], r["task"]) for r in records}) == len(records) == 8
        assert [path.name for path in tmp_path.iterdir() if "results" in path.name] == [
            "results.json"
        ]

    def test_without_a_file_what_is_finished_is_shown(
        self, recap: Recap, interrupted: Callable[..., None]
    ) -> None:
        interrupted(WARM_UP + 2, signal.SIGINT)
        outcome = recap(*SHORT, "--limit", "2", "--format", "json")
        assert outcome.code == 130
        assert len(json.loads(outcome.stdout)["records"]) == 2
        assert outcome.stderr.endswith(
            "recap: 2 of 8 requests are finished; a run with -o FILE can be resumed\n"
        )

    def test_a_second_signal_leaves_the_request_in_hand(
        self, recap: Recap, interrupted: Callable[..., None]
    ) -> None:
        interrupted(WARM_UP + 2, signal.SIGINT, signal.SIGINT)
        outcome = recap(*SHORT, "--limit", "2", "--format", "json")
        assert outcome.code == 130
        assert len(json.loads(outcome.stdout)["records"]) == 1

    def test_before_the_first_request_there_is_nothing_to_show(
        self, recap: Recap, interrupted: Callable[..., None]
    ) -> None:
        interrupted(1, signal.SIGTERM)
        outcome = recap(*SHORT, "--limit", "2")
        assert (outcome.code, outcome.stdout) == (143, "")

    def test_nothing_to_resume_starts_anew(self, recap: Recap, tmp_path: Path) -> None:
        results = tmp_path / "results.json"
        outcome = recap(*SHORT, "--limit", "1", "--resume", "-o", str(results))
        assert outcome.code == 0
        assert f"note: there is no {results}.partial to resume; starting anew" in outcome.stderr
        assert results.exists()
