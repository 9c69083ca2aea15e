"""Sessions of every method: the plain loop's answers token for token, and whose memory is kept."""

from pathlib import Path

import pytest
import torch

from engine.drafters.registry import METHODS, Method
from engine.options import DrafterOptions
from tests.zoo import Zoo, answers, conversations, finished, session


@pytest.mark.parametrize("method", [name for name in METHODS if name != "plain"])
@pytest.mark.parametrize(
    ("family", "penalty"),
    [("llama", None), ("llama", 1.05), ("qwen2_5_vl", None)],
    ids=["text", "text-penalty", "pictures"],
)
def test_the_tokens_are_those_of_the_plain_loop(
    zoo: Zoo, method: Method, family: str, penalty: float | None
) -> None:
    loaded = zoo.loaded(family, torch.float32, penalty)
    plain = answers(session(loaded, "plain"), loaded.family.vision)
    rival = session(loaded, method, drafter=METHODS[method].published)
    assert answers(rival, loaded.family.vision) == plain
    assert answers(rival, loaded.family.vision) == plain, "when it remembers having answered"


@pytest.mark.parametrize("method", METHODS)
def test_only_methods_that_remember_write_the_memory_s_file(
    zoo: Zoo, method: Method, tmp_path: Path
) -> None:
    file = tmp_path / "memory.safetensors"
    with session(zoo.loaded("llama", torch.float32, None), method, memory_file=file) as ours:
        finished(ours, conversations(vision=False)[0])
    assert file.exists() == METHODS[method].remembers


def test_without_persistence_the_memory_s_file_is_not_touched(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "memory.safetensors"
    forgetful = DrafterOptions(persistence=False)
    loaded = zoo.loaded("llama", torch.float32, None)
    with session(loaded, memory_file=file, drafter=forgetful) as ours:
        finished(ours, conversations(vision=False)[0])
    assert not file.exists()
