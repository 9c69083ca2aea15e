"""Figures as text."""

import pytest
from rich.console import Console

from engine.events import Encoded, Finished, FinishReason
from engine.stats import DecodeStats
from recap_cli.figures import brief, histogram, progress, prompt_counts, sparkline, summary


def test_bars_are_relative_to_the_most_passes() -> None:
    stats = DecodeStats(acceptance_histogram={4: 14, 1: 7, 2: 0})
    assert histogram(stats) == "1 ▅ 7  2 ▁ 0  4 █ 14"


def test_an_answer_without_passes_has_no_bars() -> None:
    assert histogram(DecodeStats()) == ""


def test_bars_can_be_ascii() -> None:
    stats = DecodeStats(ttft_s=1, passes=2, drafted=3, acceptance_histogram={1: 2})
    finished = Finished([1], "x", "stop", 5, 0, stats)
    console = Console(width=60)
    with console.capture() as captured:
        console.print(summary(finished, ascii_only=True))
    assert captured.get().isascii()


def test_plain_decoding_has_no_drafts_to_speak_of() -> None:
    stats = DecodeStats(new_tokens=3, passes=2, pass_tokens=2, decode_s=0.5)
    assert progress(stats).plain == "3 tokens  4.0 tok/s"


def test_drafts_name_their_sources_the_most_fruitful_first() -> None:
    stats = DecodeStats(new_tokens=9, passes=3, pass_tokens=8, decode_s=2, drafted=20, accepted=5)
    stats.source_accepted |= {"token": 1, "suffix": 4}
    assert progress(stats).plain == (
        "9 tokens  4.0 tok/s  MAT 2.67  tree 6.7  suffix 80%  token 20%"
    )


@pytest.mark.parametrize(("reason", "ending"), [("stop", ""), ("interrupt", " (interrupt)")])
def test_an_answer_in_brief_says_why_it_ended_early(reason: FinishReason, ending: str) -> None:
    stats = DecodeStats(new_tokens=3, ttft_s=0.25, passes=2, pass_tokens=2, decode_s=0.5)
    finished = Finished([1, 2, 3], "x", reason, 5, 0, stats)
    assert brief(finished).plain == f"3 tokens{ending}  4.0 tok/s  first 0.25 s"


def test_an_answer_in_brief_begins_with_what_matters_most() -> None:
    stats = DecodeStats(new_tokens=9, passes=3, pass_tokens=8, decode_s=2, drafted=20, accepted=5)
    stats.source_accepted["suffix"] = 5
    assert brief(Finished([], "x", "stop", 5, 0, stats)).plain == (
        "9 tokens  4.0 tok/s  MAT 2.67  first 0.00 s  tree 6.7  suffix 100%"
    )


@pytest.mark.parametrize(
    ("values", "line"), [([1.0, 2.0, 3.0], "▁▅█"), ([0.0, 1.0], "▁▁"), ([], "")]
)
def test_a_sparkline_begins_at_its_low_end(values: list[float], line: str) -> None:
    assert sparkline(values, 1.0) == line


def test_drafts_that_were_never_right_are_said_to_be() -> None:
    assert progress(DecodeStats(drafted=4)).plain.endswith("nothing accepted")


@pytest.mark.parametrize(
    ("image_tokens", "words"), [(0, "84 prompt tokens"), (64, "84 prompt tokens (64 image)")]
)
def test_the_prompt_is_counted_with_its_pictures(image_tokens: int, words: str) -> None:
    assert prompt_counts(Encoded(84, image_tokens, 9, None, "")) == words
