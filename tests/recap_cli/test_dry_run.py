"""`recap generate --dry-run` with the real demo model: what it shows is what the model reads."""

import json
from collections.abc import Callable

import pytest

from tests.recap_cli.conftest import ROOT, Outcome

SCENE = str(ROOT / "engine" / "demo" / "scene.png")


def test_pictures_stand_where_the_references_are(recap: Callable[..., Outcome]) -> None:
    flags = ["--dry-run", "-q", "-i", SCENE]
    placed = recap("generate", *flags, "--template", "look: {1} and {{1}}").stdout
    assert "user\nlook: <|vision_start|><|image_pad|><|vision_end|> and {1}<|im_end|>" in placed
    text = recap("generate", *flags, "{1}").stdout
    assert "user\n<|vision_start|><|image_pad|><|vision_end|>{1}<|im_end|>" in text


def test_fewer_pixels_are_fewer_tokens(recap: Callable[..., Outcome]) -> None:
    flags = ["--dry-run", "--json", "-q", "-i", SCENE, "describe"]
    counts = [
        json.loads(recap("generate", *flags, *more).stdout)["image_tokens"]
        for more in ([], ["--max-pixels", "3000"])
    ]
    assert counts[0] > counts[1] > 0


@pytest.mark.parametrize("more", [["-n", "5000"], ["--template"]])
def test_a_request_that_cannot_be_answered_fails(
    recap: Callable[..., Outcome], more: list[str]
) -> None:
    outcome = recap("generate", "--dry-run", "-q", "-i", SCENE, "describe", *more)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("recap: error: ")
