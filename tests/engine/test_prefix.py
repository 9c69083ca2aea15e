"""What of a prompt must still be read: tokens, and the inputs of pictures as families name them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.families import FAMILIES
from engine.prefix import ReadPrompts, Rest
from engine.prompts import EncodedPrompt
from engine.target import Target
from tests.zoo import Zoo, conversations

P = 90
"""A placeholder."""
IDS = [1, P, P, 2, 3]


def encoded(ids: Sequence[int], **inputs: Tensor) -> EncodedPrompt:
    return EncodedPrompt(torch.tensor([ids]), inputs, sum(token == P for token in ids), "")


def rows(*values: int) -> Tensor:
    """A row of two numbers a picture."""
    return torch.tensor([[value, value] for value in values])


def read(reader: ReadPrompts, prompt: EncodedPrompt, answer: Sequence[int] = ()) -> Rest:
    """Read a prompt, and commit an answer, whose last token does not enter the cache."""
    rest = reader.rest(prompt, cached=len(reader.text) - 1 if reader.text else 0)
    reader.text = [*prompt.input_ids[0].tolist(), *answer]
    return rest


def reader() -> ReadPrompts:
    return ReadPrompts(frozenset({P}))


def test_at_first_everything_is_read() -> None:
    pixels = rows(5)
    rest = read(reader(), encoded(IDS, pixel_values=pixels, batch_num_images=torch.tensor([1])))
    assert rest.kept == 0
    assert torch.equal(rest.inputs["pixel_values"], pixels)
    assert torch.equal(rest.inputs["batch_num_images"], torch.tensor([1]))


def test_what_both_prompts_begin_with_is_kept() -> None:
    ours = reader()
    read(ours, encoded([1, 2, 3]), answer=[4, 5, 6])
    assert read(ours, encoded([1, 2, 3, 4, 5, 6, 7])).kept == 5, "6 was never in the cache"
    assert read(ours, encoded([1, 2, 9, 9])).kept == 2
    assert read(ours, encoded([8, 2, 3])).kept == 0


def test_the_last_token_is_always_read() -> None:
    ours = reader()
    read(ours, encoded([1, 2, 3]), answer=[4])
    assert read(ours, encoded([1, 2, 3])).kept == 2


def test_only_new_pictures_are_looked_at() -> None:
    ours = reader()
    read(ours, encoded(IDS, pixel_values=rows(5), image_sizes=rows(50)), answer=[4, 6])
    ids = [*IDS, 4, 6, P, 7]
    rest = read(ours, encoded(ids, pixel_values=rows(5, 8), image_sizes=rows(50, 80)))
    assert rest.kept == 6
    assert torch.equal(rest.inputs["pixel_values"], rows(8))
    assert torch.equal(rest.inputs["image_sizes"], rows(80))
    rest = read(ours, encoded([*ids, 1], pixel_values=rows(5, 8), image_sizes=rows(50, 80)))
    assert (rest.kept, rest.inputs) == (len(ids) - 1, {})


def test_pictures_may_stand_along_the_second_axis() -> None:
    ours = reader()
    read(ours, encoded(IDS, pixel_values=rows(5)[None]))
    rest = read(ours, encoded([*IDS, P, 7], pixel_values=rows(5, 8, 9)[None]))
    assert torch.equal(rest.inputs["pixel_values"], rows(8, 9)[None])


def test_padding_for_a_larger_picture_changes_no_picture() -> None:
    ours = reader()
    small = torch.ones(1, 2)
    read(ours, encoded(IDS, pixel_values=small))
    both = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])
    rest = read(ours, encoded([*IDS, P, 7], pixel_values=both))
    assert rest.kept == 4
    assert torch.equal(rest.inputs["pixel_values"], both[1:])
    # The larger one is taken back, and with it the padding.
    assert read(ours, encoded([*IDS, 7], pixel_values=small)).kept == 5


def test_inputs_of_the_whole_prompt_stay_whole() -> None:
    ours = reader()
    read(ours, encoded(IDS, pixel_values=rows(5), token_type_ids=torch.ones(1, 5)))
    given = encoded([*IDS, 7, 8], pixel_values=rows(5), token_type_ids=torch.ones(1, 7))
    rest = read(ours, given)
    assert list(rest.inputs) == ["token_type_ids"]
    assert rest.inputs["token_type_ids"].shape == (1, 7)


def test_another_picture_of_the_same_size_is_looked_at() -> None:
    ours = reader()
    read(ours, encoded(IDS, pixel_values=rows(5)), answer=[4])
    rest = read(ours, encoded(IDS, pixel_values=rows(6)))
    assert rest.kept == 1, "up to the picture"
    assert torch.equal(rest.inputs["pixel_values"], rows(6))


def test_a_picture_that_takes_another_s_place_keeps_those_before_it() -> None:
    ours = reader()
    read(ours, encoded(IDS, pixel_values=rows(5)))
    read(ours, encoded([*IDS, P, 7], pixel_values=rows(5, 8)))
    rest = read(ours, encoded([*IDS, P, 7], pixel_values=rows(5, 9)))
    assert rest.kept == 5
    assert torch.equal(rest.inputs["pixel_values"], rows(9))


def test_pictures_that_came_together_are_not_torn_apart() -> None:
    ours = reader()
    read(ours, encoded([1, P, 2, P, 3], pixel_values=rows(5, 6)))
    rest = read(ours, encoded([1, P, 2, 4], pixel_values=rows(5)))
    assert rest.kept == 1
    assert torch.equal(rest.inputs["pixel_values"], rows(5))


def test_a_prompt_that_was_never_read_to_its_end_is_not_in_the_cache() -> None:
    ours = reader()
    read(ours, encoded([1, 2, 3]), answer=[4])
    ours.rest(encoded([1, 2, 3, 4, 5]), cached=3)  # and then the prefill failed
    assert ours.rest(encoded([1, 2, 3, 4, 5]), cached=3).kept == 0


@pytest.mark.parametrize("family", sorted(name for name, each in FAMILIES.items() if each.causal))
def test_reading_the_rest_gives_the_logits_of_reading_it_all(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float64, None)
    target = Target(loaded.model, loaded.family)
    messages = next(each for each in reversed(conversations(loaded.family.vision)) if each[2:])
    both = [loaded.encoder.encode(messages[:-2]), loaded.encoder.encode(messages)]
    ours = ReadPrompts(loaded.encoder.placeholder_ids)
    kept = 0
    for prompt in both:
        rest = ours.rest(prompt, target.cached)
        logits = target.prefill(prompt, room=4, rest=rest)
        ours.text, kept = prompt.input_ids[0].tolist(), rest.kept
    end = both[1].input_ids.shape[1] - 1
    inside, states = target.prompt_logits([0, end - kept]), target.prompt_states()
    # LLaVA-OneVision looks at a picture in less detail where there are several: all is read anew.
    assert kept > (0 if family == "llava_onevision" else both[0].input_ids.shape[1] / 2)

    whole = Target(loaded.model, loaded.family)
    expected = whole.prefill(both[1], room=4)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    theirs = whole.prompt_logits([kept, end])
    torch.testing.assert_close(inside, theirs, rtol=0, atol=1e-6)
    differing = np.unpackbits((states ^ whole.prompt_states()[kept:]).view(np.uint8))
    assert differing.mean() < 1e-3, "the signs of what is nearly zero"
