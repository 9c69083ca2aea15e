"""A request is counted as it will be answered, without weights; dear pictures are named."""

import shutil
from pathlib import Path

import pytest
import torch

from engine.counting import MANY_IMAGE_TOKENS, count, notices
from engine.dry_run import dry_run
from engine.errors import ContextError, PromptError
from engine.events import Encoded, Notice
from engine.options import DEFAULT_MAX_TOKENS
from engine.prompts import EncodedPrompt, Message
from engine.session import Request
from engine.sizes import PixelLimits
from tests.models import picture
from tests.zoo import ANSWER, Zoo, conversations, session


@pytest.fixture
def weightless(zoo: Zoo, tmp_path: Path) -> Path:
    """A model's folder without its weights."""
    folder = Path(shutil.copytree(zoo.folder_of("qwen2_5_vl", None), tmp_path / "model"))
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return folder


def test_a_dry_run_counts_as_a_session_does(zoo: Zoo, weightless: Path) -> None:
    ours = session(zoo.loaded("qwen2_5_vl", torch.float32, None))
    for messages in conversations(True):
        request = Request(messages, ANSWER, pixels=PixelLimits(most=60 * 60))
        assert next(ours.generate(request)) == list(dry_run(str(weightless), request))[-1]


def test_a_dry_run_shows_the_prompt_and_says_what_became_of_pictures(weightless: Path) -> None:
    request = Request([Message("user", "Is {1} red?", (picture(300, 1),), template=True)])
    notice, counts = dry_run(str(weightless), request)
    assert isinstance(notice, Notice)
    assert "300x1 pixels" in notice.message
    assert isinstance(counts, Encoded)
    assert "Is <|vision_start|><|image_pad|><|vision_end|> red?" in counts.rendered
    assert 0 < counts.image_tokens < counts.prompt_tokens
    assert counts.context_length is not None
    assert counts.answer_tokens == min(
        DEFAULT_MAX_TOKENS, counts.context_length - counts.prompt_tokens
    )


def test_a_dry_run_refuses_what_a_session_refuses(weightless: Path) -> None:
    with pytest.raises(ContextError, match="do not fit"):
        list(dry_run(str(weightless), Request([Message("user", "circle " * 9000)])))
    with pytest.raises(PromptError, match="does not use picture 1"):
        list(
            dry_run(
                str(weightless),
                Request([Message("user", "?", (picture(28, 28),), template=True)]),
            )
        )


def prompt(text: int, image: int, notices: tuple[str, ...] = ()) -> EncodedPrompt:
    return EncodedPrompt(torch.zeros(1, text + image), {}, image, "", notices)


@pytest.mark.parametrize(
    ("max_tokens", "context", "answer"),
    [(None, None, DEFAULT_MAX_TOKENS), (None, 100, 70), (7, 100, 7), (70, 100, 70), (9, None, 9)],
)
def test_an_answer_gets_what_was_asked_for_or_what_is_left(
    max_tokens: int | None, context: int | None, answer: int
) -> None:
    assert count(prompt(20, 10), max_tokens, context) == Encoded(30, 10, answer, context, "")


def test_what_does_not_fit_is_refused_with_counts_and_ways_out() -> None:
    message = (
        r"^20 text \+ 10 image \+ 71 answer tokens do not fit into the model's 100; use fewer or "
        r"smaller pictures \(--max-pixels\), a shorter prompt, or fewer --max-tokens$"
    )
    with pytest.raises(ContextError, match=message):
        count(prompt(20, 10), 71, 100)
    with pytest.raises(ContextError, match=r"; use a shorter prompt, or fewer --max-tokens$"):
        count(prompt(19, 0), 2, 20)
    with pytest.raises(ContextError, match=r"; use a shorter prompt$"):
        count(prompt(20, 0), None, 20)


def test_pictures_that_take_many_tokens_get_a_notice_that_names_the_flag() -> None:
    dear = prompt(20, MANY_IMAGE_TOKENS, ("a notice",))
    first, second = notices(dear, PixelLimits())
    assert first == Notice("a notice")
    assert "the pictures take 2000 tokens; with --max-pixels" in second.message
    assert notices(dear, PixelLimits(most=10**7)) == [first]
    assert notices(prompt(20, MANY_IMAGE_TOKENS - 1), PixelLimits()) == []
