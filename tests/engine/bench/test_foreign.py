"""Transformers' own `generate()` as a contender: its tokens, its attention, what is seen of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.attention import NAME as TREE_ATTENTION
from engine.bench.contenders import Contender, contenders
from engine.bench.foreign import SEEN, Arrivals, generate, untouched
from engine.errors import ContextError
from engine.loading import LoadedModel
from engine.session import Request
from tests.zoo import ANSWER, Zoo, conversations, finished, session

FAMILIES = ["llama", "qwen2_5_vl", "llava_next"]
EVERYBODY = {
    each.name: each for each in contenders(["transformers-lookup", "transformers-lookup:4"])
}


def attentions(loaded: LoadedModel) -> set[str]:
    """The attention of the language model's layers."""
    decoder = loaded.model.get_decoder()
    return {
        part.config._attn_implementation for part in decoder.modules() if hasattr(part, "config")
    }


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *((family, "transformers") for family in FAMILIES),
        # With LLaVA-NeXT it may draft placeholders of pictures, and crash.
        *((family, "transformers-lookup") for family in FAMILIES[:2]),
    ],
)
def test_the_tokens_are_those_of_transformers_alone(zoo: Zoo, family: str, name: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    expected = zoo.answers(family, torch.float32, None)
    for messages, ids in zip(conversations(loaded.family.vision), expected, strict=True):
        found = generate(loaded, EVERYBODY[name], Request(messages, ANSWER))
        assert found.token_ids == ids
        ours = finished(session(loaded, "plain"), messages)
        assert found.prompt_tokens == ours.prompt_tokens
        assert found.image_tokens == ours.image_tokens
        assert found.finish_reason == ours.finish_reason


@pytest.mark.parametrize("family", FAMILIES)
def test_it_runs_with_its_usual_attention_and_ours_comes_back(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    with untouched(loaded):
        assert attentions(loaded) == {"sdpa"}
    assert attentions(loaded) == {TREE_ATTENTION}


def test_our_attention_comes_back_after_a_failure(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    with pytest.raises(ZeroDivisionError), untouched(loaded):
        raise ZeroDivisionError
    assert attentions(loaded) == {TREE_ATTENTION}


def test_a_family_without_sdpa_gets_eager(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    switch: Callable[[str], None] = loaded.model.set_attn_implementation

    def picky(name: str) -> None:
        if name == "sdpa":
            raise ValueError("not supported")
        switch(name)

    monkeypatch.setattr(loaded.model, "set_attn_implementation", picky)
    with untouched(loaded):
        assert attentions(loaded) == {"eager"}


def text_answer(zoo: Zoo, contender: Contender, tokens: int = ANSWER) -> Any:
    loaded = zoo.loaded("llama", torch.float32, None)
    return generate(loaded, contender, Request(conversations(vision=False)[2], tokens))


def test_what_can_be_seen_is_measured_and_the_rest_is_not(zoo: Zoo) -> None:
    found = text_answer(zoo, EVERYBODY["transformers"])
    known = {key for key, value in found.measures.items() if value is not None}
    assert known == SEEN
    assert found.committed == [1] * (len(found.token_ids) - 1)
    assert found.measures["passes"] == len(found.committed)
    assert found.measures["mean_acceptance_length"] == 1.0
    assert found.measures["new_tokens"] == len(found.token_ids)
    assert 0 < found.measures["encode_s"] < found.measures["ttft_s"]
    assert found.measures["decode_s"] > 0


def test_prompt_lookup_commits_several_tokens_a_pass(zoo: Zoo) -> None:
    found = text_answer(zoo, EVERYBODY["transformers-lookup"])
    fewer = text_answer(zoo, EVERYBODY["transformers-lookup:4"])
    assert max(found.committed) > 1
    assert max(fewer.committed) <= 5
    assert found.measures["mean_acceptance_length"] > 1
    assert fewer.token_ids == found.token_ids


def test_one_token_needs_no_pass(zoo: Zoo) -> None:
    found = text_answer(zoo, EVERYBODY["transformers"], tokens=1)
    assert (len(found.token_ids), found.committed, found.finish_reason) == (1, [], "length")


def test_what_does_not_fit_is_refused_as_everywhere(zoo: Zoo) -> None:
    with pytest.raises(ContextError):
        text_answer(zoo, EVERYBODY["transformers"], tokens=100_000)


def test_arrivals_are_counted_behind_the_prompt_and_up_to_the_answer_s_end() -> None:
    arrivals = Arrivals()
    for tokens in ([[1, 2, 3]], [7], [[8, 9, 10]], [[11, 12]]):
        arrivals.put(torch.tensor(tokens))
    arrivals.end()
    assert arrivals.token_ids == [7, 8, 9, 10, 11, 12]
    assert arrivals.sizes(6) == [1, 3, 2]
    assert arrivals.sizes(3) == [1, 2]
    assert len(arrivals.times) == 3
