"""Every method's answers are the plain loop's, token for token, in float32."""

import pytest
import torch

from engine.drafters.registry import METHODS, Method
from tests.zoo import Zoo, answers, session

RIVALS = pytest.mark.parametrize("method", [name for name in METHODS if name != "plain"])


@RIVALS
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
