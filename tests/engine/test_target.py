"""The adapter over transformers: a tree verified in one pass is every path read by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MistralConfig, Qwen2Config

from engine.attention import NAME as TREE_ATTENTION
from engine.decode import Limits
from engine.families import FAMILIES
from engine.kv_cache import GROWTH_STEP
from engine.loading import LoadedModel
from engine.logits import predict
from engine.passes import USUAL, PassShapes
from engine.prompts import EncodedPrompt
from engine.states import states_of
from engine.target import Target
from engine.tree import DraftTree
from tests.engine.fakes import Scripted, Text, answered, saboteur
from tests.models import FLAGSHIPS, random_model, text_sizes
from tests.zoo import ANSWER, Zoo, conversations, generated

EVERY_FAMILY = pytest.mark.parametrize("family", sorted(FAMILIES))
CASES = pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float64) for family in sorted(FAMILIES)),
        *((family, torch.float32) for family in FLAGSHIPS),
    ],
    ids=str,
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-6}  # logits always come in float32


def tree_of(root: int, vocab: int) -> DraftTree:
    """Three levels with wrong siblings, a token at several places and a long branch."""
    tree = DraftTree([root])
    left, right = tree.add(11, 0, 0, 0.5), tree.add(12, 0, 0, 0.5)
    tree.add(12, left, 0, 0.5)
    deep = tree.add(11, right, 0, 0.5)
    tree.add(13, right, 0, 0.5)
    for token in (root, 11, vocab - 1):
        deep = tree.add(token, deep, 0, 0.5)
    return tree


def path_to(tree: DraftTree, node: int) -> list[int]:
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, tree.parents[path[0]])
    return path


def alone(model: Any, prompt: EncodedPrompt, tokens: Sequence[int]) -> Tensor:
    """[vocab] logits of transformers alone: one forward over prompt and tokens, no cache."""
    ids = torch.cat([prompt.input_ids, torch.tensor([tokens], dtype=torch.int64)], 1)
    inputs = dict(prompt.model_inputs)
    if "mm_token_type_ids" in inputs:
        kinds = inputs["mm_token_type_ids"]
        inputs["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, len(tokens)))
    with torch.inference_mode():
        output = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs
        )
    logits: Tensor = output.logits[0, -1].float()
    return logits


@CASES
def test_every_node_s_logits_are_those_of_its_path_read_alone(
    zoo: Zoo, family: str, dtype: torch.dtype
) -> None:
    loaded = zoo.loaded(family, dtype, None)
    reference = zoo.reference(family, dtype, None)
    close = partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE[dtype])
    target = Target(loaded.model, loaded.family)
    for messages in conversations(loaded.family.vision)[1:4]:
        prompt = loaded.encoder.encode(messages)
        first = target.prefill(prompt, room=16)
        close(first[0], alone(reference, prompt, []))
        committed: list[int] = []
        for path in ([0, 2, 4], [0, 1], [0, 2, 4, 6, 7, 8], [0]):
            tree = tree_of(root=10 + len(committed), vocab=first.shape[1])
            logits = target.verify(tree)
            for node in range(len(tree)):
                tokens = committed + [tree.tokens[each] for each in path_to(tree, node)]
                close(logits[node], alone(reference, prompt, tokens))
            target.keep(path)
            committed += [tree.tokens[node] for node in path]


@EVERY_FAMILY
def test_logits_inside_the_prompt_are_those_of_a_forward(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    prompt = loaded.encoder.encode(conversations(loaded.family.vision)[-1])
    target = Target(loaded.model, loaded.family)
    target.prefill(prompt, room=4)
    ids, reference = prompt.input_ids, zoo.reference(family, torch.float32, None)
    with torch.inference_mode():
        output = reference(
            input_ids=ids, attention_mask=torch.ones_like(ids), **prompt.model_inputs
        )
    positions = [0, 3, ids.shape[1] - 2]
    torch.testing.assert_close(
        target.prompt_logits(positions), output.logits[0, positions], rtol=0, atol=2e-4
    )


@pytest.mark.parametrize("family", sorted(name for name, each in FAMILIES.items() if each.causal))
def test_passes_are_in_the_states_in_which_a_prompt_is_read(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float64, None)
    prompt = loaded.encoder.encode(conversations(False)[0])
    ids = prompt.input_ids
    target = Target(loaded.model, loaded.family)
    target.prefill(prompt, room=0)
    expected = target.prompt_states()
    assert len(expected) == ids.shape[1]
    target.prefill(replace(prompt, input_ids=ids[:, :-4], model_inputs={}), room=4)
    assert target.prompt_states().tolist() == expected[:-4].tolist()
    root, *rest = ids[0, -4:].tolist()
    tree = DraftTree([root])
    tree.add(root, 0, 0, 0.5)  # a wrong guess among the right ones
    for parent, token in zip((0, 2, 3), rest, strict=True):
        tree.add(token, parent, 0, 0.5)
    target.verify(tree)
    found = states_of(target.hidden)
    assert found[[0, 2, 3, 4]].tolist() == expected[-4:].tolist()


@EVERY_FAMILY
def test_a_pass_that_was_abandoned_does_not_count(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    prompt = loaded.encoder.encode(conversations(loaded.family.vision)[-1])
    target = Target(loaded.model, loaded.family)
    target.prefill(prompt, room=4)
    tree = tree_of(10, 100)
    expected = target.verify(tree)
    target.verify(tree_of(30, 100))
    assert torch.equal(target.verify(tree), expected)


def check_sabotaged(
    loaded: LoadedModel,
    prompt: EncodedPrompt,
    expected: Sequence[int],
    room: int,
    seed: int = 0,
    shapes: PassShapes = USUAL,
) -> None:
    """Right tokens hidden among wrong ones, as drafts, give the answer that is expected."""
    vocab = loaded.model.config.get_text_config().vocab_size
    grow = saboteur(expected, prompt.input_ids.shape[1], vocab, seed)
    check_drafted(loaded, prompt, expected, room, Scripted(grow), shapes)


def check_drafted(
    loaded: LoadedModel,
    prompt: EncodedPrompt,
    expected: Sequence[int],
    room: int,
    drafter: Scripted,
    shapes: PassShapes = USUAL,
) -> None:
    target = Target(loaded.model, loaded.family, shapes)
    history: list[int] = prompt.input_ids[0].tolist()
    (first,) = predict(target.prefill(prompt, room), 0).choices
    limits = Limits(len(expected), loaded.stop_ids)
    passes = answered(target, drafter, history, first, limits)
    assert [first, *(token for tokens in passes for token in tokens)] == expected
    assert len(passes) < len(expected) - 1, "nothing was accepted, so little was shown"


@CASES
def test_misleading_trees_do_not_change_the_answer(
    zoo: Zoo, family: str, dtype: torch.dtype
) -> None:
    loaded = zoo.loaded(family, dtype, None)
    expected = zoo.answers(family, dtype, None)
    for seed, messages in enumerate(conversations(loaded.family.vision)):
        check_sabotaged(loaded, loaded.encoder.encode(messages), expected[seed], ANSWER, seed)


@pytest.mark.parametrize("family", FLAGSHIPS)
def test_a_long_answer_outgrows_its_room_unharmed(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float64, None)
    endless = replace(loaded, stop_ids=frozenset())
    prompt = loaded.encoder.encode(conversations(loaded.family.vision)[-1])
    reference = zoo.reference(family, torch.float64, None)
    expected = generated(reference, prompt, GROWTH_STEP + 40, eos_token_id=None)
    assert len(expected) == GROWTH_STEP + 40
    check_sabotaged(endless, prompt, expected, room=0)


WINDOW = 8


def sliding_qwen2(layer_types: list[str]) -> Any:
    sizes = text_sizes(96) | {"num_hidden_layers": len(layer_types)}
    return Qwen2Config(
        **sizes, use_sliding_window=True, sliding_window=WINDOW, layer_types=layer_types
    )


def sliding_mistral() -> Any:
    return MistralConfig(**text_sizes(96), sliding_window=WINDOW)


@DTYPES
@pytest.mark.parametrize(
    "shapes", [USUAL, PassShapes((1, 4, 16), extent=64)], ids=["exact", "padded"]
)
@pytest.mark.parametrize(
    "config",
    [
        sliding_qwen2(["full_attention", "sliding_attention"]),
        sliding_qwen2(["sliding_attention", "sliding_attention"]),
        sliding_mistral(),
    ],
    ids=["some layers", "all layers", "told by no layer types"],
)
def test_a_sliding_window_is_kept_where_it_is_shorter_than_the_text(
    config: Any, dtype: torch.dtype, shapes: PassShapes
) -> None:
    model = random_model(config, [], seed=1).to(dtype)
    ids = torch.randint(96, (1, 3 * WINDOW), generator=torch.Generator().manual_seed(2))
    prompt = EncodedPrompt(ids, {}, 0, "")
    model.set_attn_implementation("sdpa")
    expected = generated(model, prompt, 3 * WINDOW)
    wide = random_model(_without_window(config), [], seed=1).to(dtype)
    assert generated(wide, prompt, 3 * WINDOW) != expected, "the window does not matter here"
    model.set_attn_implementation(TREE_ATTENTION)
    loaded = LoadedModel("tiny", model, FAMILIES["qwen2"], None, frozenset(), None)  # type: ignore[arg-type]
    for seed in range(3):
        check_sabotaged(loaded, prompt, expected, 0, seed, shapes)
    check_drafted(loaded, prompt, expected, 0, Scripted(_behind_decoys(expected)), shapes)


def _without_window(config: Any) -> Any:
    settings = config.to_dict() | {"sliding_window": None, "use_sliding_window": False}
    settings.pop("layer_types", None)
    return type(config)(**settings)


def _behind_decoys(expected: Sequence[int]) -> Callable[[DraftTree, Text, int], None]:
    """The answer as a chain deeper than the window, in slots far from its places in the text."""

    def grow(tree: DraftTree, text: Text, max_depth: int) -> None:
        rest = expected[len(text) - 3 * WINDOW :][:max_depth]
        for token in range(WINDOW) if rest else ():
            if token != rest[0]:
                tree.add(token, 0, 0, 0.1)
        parent = 0
        for token in rest:
            parent = tree.add(token, parent, 0, 1.0)

    return grow
