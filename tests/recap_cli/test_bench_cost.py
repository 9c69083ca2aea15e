"""`recap bench cost`: what it measures, what it writes, and what is left of an interrupted run."""

import csv
import io
import json
import signal
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.bench.cost import CostOptions, Subject
from recap_cli import sessions
from recap_cli.bench_cost import cost
from tests.recap_cli.conftest import Outcome

Recap = Callable[..., Outcome]
QUICK = ("bench", "cost", "--sizes", "4,2", "--contexts", "8,16", "--repeats", "2")


class FakeTarget:
    """Verifies by doing nothing; after `passes` of them the process gets a signal."""

    device = torch.device("cpu")
    form = "eager"

    def __init__(self, passes: int, signum: signal.Signals) -> None:
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=40))
        self.model = SimpleNamespace(
            config=config, dtype=torch.bfloat16, num_parameters=lambda: 7_000_000, modules=list
        )
        self._left, self._signum = passes, signum

    def prefill(self, *_: Any) -> None:
        pass

    def forget_prompt(self) -> None:
        pass

    def verify(self, tree: Any) -> torch.Tensor:
        if not self._left:
            signal.raise_signal(self._signum)
        self._left -= 1
        return torch.zeros(len(tree), 40)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What models were asked for; they attend to 4096 tokens, and bear 1000 passes unless told."""
    calls: dict[str, Any] = {"passes": 1000, "signum": signal.SIGINT}

    def subject(**options: Any) -> Subject:
        calls.update(options)
        target: Any = FakeTarget(calls["passes"], calls["signum"])
        return Subject(options["model"], target, frozenset(), 4096)

    monkeypatch.setattr(sessions, "cost_subject", subject)
    return calls


def test_what_is_measured_by_default_is_what_the_engine_measures_by_default() -> None:
    defaults = {name: parameter.default for name, parameter in signature(cost).parameters.items()}
    for name, numbers in (("sizes", CostOptions().sizes), ("contexts", CostOptions().contexts)):
        assert defaults[name] == ",".join(map(str, numbers))
    assert defaults["repeats"] == CostOptions().repeats


def test_the_demo_model_is_measured_if_nothing_is_named(recap: Recap) -> None:
    outcome = recap(*QUICK, "--format", "json")
    assert outcome.code == 0
    found = json.loads(outcome.stdout)
    assert (found["kind"], found["format"], found["model"]) == ("cost", 1, "demo")
    assert (found["finished"], found["random_weights"]) == (True, False)
    sizes = [(point["context"], point["tokens"]) for point in found["points"]]
    assert sizes == [(context, tokens) for context in (8, 16) for tokens in (1, 2, 4)]
    assert all(point["ms_q1"] <= point["ms"] <= point["ms_q3"] for point in found["points"])
    assert [point["ratio"] for point in found["points"] if point["tokens"] == 1] == [1, 1]
    payoffs = [(p["context"], p["acceptance"], p["shape"]) for p in found["payoffs"]]
    assert payoffs == [
        (context, acceptance, shape)
        for context in (8, 16)
        for acceptance in (0.3, 0.5, 0.7, 0.9)
        for shape in ("chain", "tree")
    ]
    assert found["machine"]["cores"] >= 1


@pytest.mark.usefixtures("asked")
def test_the_tables_say_what_passes_cost_and_which_size_pays(recap: Recap) -> None:
    outcome = recap(*QUICK, "-m", "some/model", "--acceptance", "0.6")
    assert outcome.code == 0
    for title in ("Passes behind 8 tokens", "Passes behind 16 tokens", "The size that pays most"):
        assert title in outcome.stdout
    assert "some/model, 7 M parameters; bfloat16 on cpu; medians of 2 passes" in " ".join(
        outcome.stdout.split()
    )
    assert outcome.stderr == "recap: loading some/model ...\n"


@pytest.mark.usefixtures("asked")
def test_points_as_csv_lines_and_markdown(recap: Recap, tmp_path: Path) -> None:
    file = tmp_path / "cost.csv"
    assert recap(*QUICK, "--format", "csv", "-o", str(file)).stdout == ""
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["tokens"] for row in rows] == ["1", "2", "4"] * 2
    assert rows[0]["marginal"] == ""
    lines = recap(*QUICK, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [1, 2, 4] * 2
    assert "| tokens | ms |" in recap(*QUICK, "--format", "md").stdout


def test_random_weights_are_made_of_a_config(recap: Recap, asked: dict[str, Any]) -> None:
    outcome = recap(*QUICK, "--random-weights", "c.json", "--dtype", "bfloat16")
    assert (asked["model"], asked["random_weights"], asked["dtype"]) == ("c.json", True, "bfloat16")
    assert outcome.stderr == "recap: making c.json ...\n"
    assert "random weights of c.json" in outcome.stdout


def test_passes_may_be_compiled_first(recap: Recap, asked: dict[str, Any]) -> None:
    outcome = recap(*QUICK, "-m", "some/model", "--compile", "--format", "json")
    assert asked["compile"] is True
    assert json.loads(outcome.stdout)["compiled"] is True
    assert outcome.stderr == "recap: loading and compiling some/model ...\n"


def test_a_model_in_the_environment_gives_way_to_random_weights(
    recap: Recap, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECAP_MODEL", "some/model")
    assert recap(*QUICK, "--random-weights", "c.json").code == 0
    assert asked["model"] == "c.json"


@pytest.mark.usefixtures("asked")
def test_contexts_that_do_not_fit_are_cut_with_a_note(recap: Recap) -> None:
    outcome = recap(*QUICK, "--contexts", "8,9000", "--format", "csv")
    assert {line.partition(",")[0] for line in outcome.stdout.split()[1:]} == {"8", "4092"}
    assert "note: contexts are cut to what the model attends to, 4096 tokens" in outcome.stderr


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_what_is_finished(
    recap: Recap, asked: dict[str, Any], signum: signal.Signals, code: int
) -> None:
    asked["signum"] = signum
    asked["passes"] = 9 + 6 + 9 + 2  # a context, its warm-up before it, and a little of the next
    outcome = recap(*QUICK, "--format", "json")
    assert outcome.code == code
    found = json.loads(outcome.stdout)
    assert found["finished"] is False
    assert {point["context"] for point in found["points"]} == {8}


def test_ctrl_c_before_anything_is_finished_leaves_nothing(
    recap: Recap, asked: dict[str, Any]
) -> None:
    asked["passes"] = 9 + 3  # every size once
    outcome = recap(*QUICK, "--format", "csv")
    assert (outcome.code, outcome.stdout) == (130, "")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("-m", "demo", "--random-weights", "c.json"), "exclude each other"),
        (("--sizes", "1,two"), "--sizes takes numbers with commas between them, not '1,two'"),
        (("--contexts", "0"), "numbers from 1 on"),
        (("--acceptance", "1.5"), "--acceptance takes shares between 0 and 1, not '1.5'"),
        (("--sizes", "5000"), "a pass of 5000 tokens does not fit"),
        (("-o", "none/file.json"), "there is no such folder"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_wrong_usage_is_one_line(recap: Recap, flags: tuple[str, ...], reason: str) -> None:
    outcome = recap(*QUICK, *flags)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert reason in outcome.stderr.splitlines()[-1]


def test_a_config_that_is_not_there_is_one_line(recap: Recap) -> None:
    outcome = recap(*QUICK, "--random-weights", "./none.json")
    assert outcome.code == 1
    assert outcome.stderr.splitlines()[-1] == "recap: error: ./none.json: there is no such folder"
