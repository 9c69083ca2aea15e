"""Pictures get sizes that the user and the model take, and keep their content."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.errors import ImageError, UsageError
from engine.events import Finished
from engine.families import FAMILIES
from engine.loading import load_reader
from engine.prompts import Message, PromptEncoder
from engine.session import Request
from engine.sizes import PixelLimits, repaired
from tests.models import picture
from tests.zoo import Zoo, finished, session

VISION = tuple(sorted(name for name, family in FAMILIES.items() if family.vision))
BUDGETED = ("glm4v", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")
SCALED = ("idefics3", "internvl", "mistral3", "pixtral", "smolvlm")
# The smallest, those of one patch or two, the thinnest.
ODD = ((1, 1), (14, 14), (16, 16), (28, 28), (28, 14), (300, 1), (1, 300), (3000, 2), (5, 900))


@pytest.fixture(scope="module")
def encoder(zoo: Zoo, family: str) -> PromptEncoder:
    return load_reader(str(zoo.folder_of(family, None))).encoder


def tokens(encoder: PromptEncoder, image: Image.Image, limits: PixelLimits) -> int:
    return encoder.encode([Message("user", "What?", (image,))], limits).image_tokens


@pytest.mark.parametrize("family", [*BUDGETED, *SCALED], scope="module")
def test_fewer_pixels_are_fewer_tokens(encoder: PromptEncoder) -> None:
    large = picture(160, 120)
    own = tokens(encoder, large, PixelLimits())
    assert tokens(encoder, large, PixelLimits(most=60 * 60)) < own
    assert tokens(encoder, large, PixelLimits(most=10**9)) == own
    small = picture(30, 20)
    assert tokens(encoder, small, PixelLimits(most=10**6)) == tokens(encoder, small, PixelLimits())


@pytest.mark.parametrize("family", BUDGETED, scope="module")
def test_more_pixels_are_more_tokens(encoder: PromptEncoder) -> None:
    small = picture(60, 60)
    assert tokens(encoder, small, PixelLimits(least=200 * 200)) > tokens(
        encoder, small, PixelLimits()
    )


@pytest.mark.parametrize("family", ["qwen2_5_vl"], scope="module")
def test_a_limit_outside_of_the_model_s_own_moves_the_other(encoder: PromptEncoder) -> None:
    tiny = tokens(encoder, picture(160, 120), PixelLimits(most=28 * 28))
    assert tiny == 1
    assert tokens(encoder, picture(30, 30), PixelLimits(least=10**6)) > 1000


@pytest.mark.parametrize("family", VISION, scope="module")
def test_every_family_takes_pictures_of_any_shape(zoo: Zoo, family: str) -> None:
    ours = session(zoo.loaded(family))
    for size in ODD:
        assert len(finished(ours, [Message("user", "?", (picture(*size),))], 2).token_ids) == 2


@pytest.mark.parametrize("family", SCALED, scope="module")
def test_every_family_takes_the_least_number_of_pixels(zoo: Zoo, family: str) -> None:
    request = Request([Message("user", "?", (picture(90, 60),))], 2, pixels=PixelLimits(most=1))
    *_, last = session(zoo.loaded(family)).generate(request)
    assert isinstance(last, Finished)
    assert len(last.token_ids) == 2


@pytest.mark.parametrize("family", ["qwen2_5_vl"], scope="module")
def test_a_picture_that_had_to_be_changed_is_named(encoder: PromptEncoder) -> None:
    two = (picture(57, 57), picture(300, 1))
    (notice,) = encoder.encode([Message("user", "", two)]).notices
    assert notice == (
        "picture 2 of 2 (300x1 pixels) is too small or too thin for the model: shown to it as 300x3"
    )
    assert encoder.encode([Message("user", "", two[:1])]).notices == ()


def only(least_side: int = 1, most_ratio: int = 10**9) -> Any:
    """An image processor that refuses all else."""

    def process(images: list[Image.Image]) -> None:
        (image,) = images
        if min(image.size) < least_side:
            raise ValueError(f"sides must be at least {least_side}")
        if max(image.size) > most_ratio * min(image.size):
            raise ValueError("ratio\nmust be smaller")

    return process


def test_a_picture_is_changed_no_more_than_needed() -> None:
    good, small, thin = picture(90, 80), picture(3, 2), picture(300, 1)
    (one, two), notices = repaired(only(least_side=28), [good, small], {})
    assert (one, two.size, len(notices)) == (good, (96, 64), 1)
    assert np.array_equal(np.asarray(two)[::32, ::32], np.asarray(small))
    (padded,), _ = repaired(only(most_ratio=200), [thin], {})
    assert padded.size == (300, 3)
    assert np.array_equal(np.asarray(padded)[1], np.asarray(thin)[0])
    assert (np.asarray(padded)[[0, 2]] == 255).all(), "a white margin"
    (padded,), _ = repaired(only(most_ratio=20), [thin], {})
    assert padded.size == (300, 30)


def test_a_picture_that_fits_in_no_size_is_refused_with_the_limit() -> None:
    message = r"^picture 2 of 2 \(1x300 pixels\) does not fit the model: sides must be at least 999"
    with pytest.raises(ImageError, match=message):
        repaired(only(least_side=999), [picture(1000, 1000), picture(1, 300)], {})


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ((0, None), "--min-pixels must be at least 1, not 0"),
        ((None, -5), "--max-pixels must be at least 1, not -5"),
        ((9, 4), "--min-pixels 9 is above --max-pixels 4"),
    ],
)
def test_impossible_limits_are_refused(limits: tuple[int | None, int | None], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        PixelLimits(*limits)
