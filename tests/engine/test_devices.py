"""On a GPU: the same answers, and one wait a pass. None is needed: see `tests.emulated`."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from engine import compiled, kernels
from engine.families import FAMILIES
from engine.loading import LoadedModel
from engine.session import Session, SessionOptions
from tests.emulated import Emulated, emulated, register_devices
from tests.models import FLAGSHIPS
from tests.zoo import Conversation, Zoo, conversations, finished, session

CAPTURED = ("gemma3", "llava_next", "mistral", "paligemma2", "phi3_long", "qwen2_5_vl")
"""Families with all kinds of masks and positions."""

A_REQUEST_S = 8
"""Waits that a request may have beside those of its passes."""


@pytest.fixture(scope="session")
def devices(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What this build of PyTorch does not have."""
    if shutil.which(kernels.compiler()) is None:
        pytest.skip("needs a C++ compiler")
    register_devices(tmp_path_factory.mktemp("devices"))


@pytest.fixture
def cuda(devices: None) -> Iterator[Emulated]:
    with emulated("cuda") as there:
        yield there


@pytest.fixture
def mps(devices: None) -> Iterator[Emulated]:
    with emulated("mps") as there:
        yield there


def moved(zoo: Zoo, family: str, there: Emulated, penalty: float | None = None) -> LoadedModel:
    """A model of this family on the device."""
    loaded = zoo.load(family, penalty=penalty)
    return replace(loaded, model=there.put(loaded.model))


def some(vision: bool) -> list[Conversation]:
    """A text, and several pictures in one message where the family has them."""
    every = conversations(vision)
    return [every[0], every[3]] if vision else every[:2]


def answers(asked: Session, family: str) -> list[list[int]]:
    return [list(finished(asked, it).token_ids) for it in some(FAMILIES[family].vision)]


def on_cpu(zoo: Zoo, family: str, penalty: float | None = None) -> list[list[int]]:
    return answers(session(zoo.loaded(family, torch.float32, penalty)), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_on_cuda_answers_are_a_cpu_s(zoo: Zoo, family: str, cuda: Emulated) -> None:
    assert answers(session(moved(zoo, family, cuda)), family) == on_cpu(zoo, family)


@pytest.mark.parametrize("family", FLAGSHIPS)
def test_on_mps_answers_are_a_cpu_s(zoo: Zoo, family: str, mps: Emulated) -> None:
    assert answers(session(moved(zoo, family, mps, 1.05)), family) == on_cpu(zoo, family, 1.05)


@pytest.mark.parametrize("penalty", [None, 1.05])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_on_cuda_a_pass_waits_once_for_what_it_predicts(
    zoo: Zoo, family: str, penalty: float | None, cuda: Emulated
) -> None:
    asked = session(moved(zoo, family, cuda, penalty))
    last = finished(asked, conversations(vision=False)[0], 48)
    assert last.stats.passes > A_REQUEST_S
    assert sum(cuda.waits.values()) <= last.stats.passes + A_REQUEST_S, cuda.waits


@pytest.mark.parametrize("family", CAPTURED)
def test_on_cuda_compiled_passes_are_captured_and_replayed(
    zoo: Zoo, family: str, cuda: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "CompiledForward", lambda forward: forward)
    monkeypatch.setattr("engine.session.require_compiler", lambda _: None)  # triton
    options = SessionOptions(memory=False, compile=True)
    asked = Session(moved(zoo, family, cuda, 1.05), options)
    assert answers(asked, family) == on_cpu(zoo, family, 1.05)
    assert cuda.replays > len(cuda.graphs) > 1
