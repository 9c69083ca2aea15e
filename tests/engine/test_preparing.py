"""What is done before the first answer, and what the user reads of it."""

import pytest
import torch

from engine import kernels
from engine.errors import UnbuildableOperators
from engine.preparing import prepare
from engine.target import Target
from engine.tree import DraftTree
from tests.zoo import Zoo, conversations


@pytest.fixture
def target(zoo: Zoo) -> Target:
    loaded = zoo.load("llama")
    return Target(loaded.model, loaded.family)


def said(target: Target, *, compile: bool = False) -> list[str]:
    return [notice.message for notice in prepare(target, compile=compile)]


@pytest.mark.usefixtures("compiler")
def test_operators_that_are_there_are_used_without_a_word(target: Target) -> None:
    assert said(target) == []
    assert target.form == "operators"


@pytest.mark.usefixtures("compiler", "nothing_built")
def test_building_is_said_before_and_behind(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = prepare(target, compile=False)
    monkeypatch.setattr(kernels, "load", lambda: pytest.fail("before it was said"))
    assert next(notices).message == "building operators for this CPU; up to a minute, once"
    monkeypatch.undo()
    assert [notice.message[:8] for notice in notices] == ["built in"]
    assert target.form == "operators"


@pytest.mark.usefixtures("compiler", "nothing_built")
def test_what_cannot_be_built_is_said_once_with_the_way_out_and_passes_go_without(
    zoo: Zoo, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        kernels.refusal_file().parent.mkdir(parents=True)
        kernels.refusal_file().write_text(f"{kernels.compiler()}\nso")
        raise UnbuildableOperators("operators in C++ cannot be built (so)")

    monkeypatch.setattr(kernels, "load", fail)
    _, outcome = said(target)
    assert outcome.startswith("operators in C++ cannot be built (so); answers take a little longer")
    assert str(kernels.refusal_file()) in outcome
    assert target.form == "eager"
    assert said(target) == []
    prompt = zoo.loaded("llama", torch.float32, None).encoder.encode(conversations(vision=False)[0])
    target.prefill(prompt, room=4)
    assert len(target.verify(DraftTree([4]))) == 1


@pytest.mark.usefixtures("nothing_built")
def test_without_a_compiler_passes_stay_as_they_are(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert said(target) == []
    assert target.form == "eager"


def test_models_that_they_do_not_serve_go_without(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float64, None)
    target = Target(loaded.model, loaded.family)
    assert said(target) == []
    assert target.form == "eager"


@pytest.mark.usefixtures("compiler", "uncompilable")
def test_a_model_that_cannot_be_compiled_gets_operators_all_the_same(target: Target) -> None:
    _, outcome = said(target, compile=True)
    assert outcome == "this model cannot be compiled (so); it answers as it is"
    assert target.form == "operators"
