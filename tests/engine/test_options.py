"""Options are checked where they are made."""

from typing import Any

import pytest

from engine.errors import UsageError
from engine.options import DrafterOptions
from engine.session import Request, SessionOptions


def test_the_defaults_are_possible() -> None:
    assert DrafterOptions() == DrafterOptions()


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 1},
        {"k": 65},
        {"nodes": -1},
        {"states": -1.0},
        {"states": float("nan")},
        {"states": float("inf")},
        {"nodes": 1025},
        {"max_depth": 0},
        {"min_probability": -0.1},
        {"min_probability": 1.0},
        {"min_probability": float("nan")},
        {"specificity": (1.0, 2.0)},
        {"specificity": (1.0, -2.0, 4.0)},
        {"suffix_min_match": 0},
        {"suffix_base": 0.0},
        {"suffix_gain": 1.0},
    ],
    ids=str,
)
def test_impossible_options_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong)).split("_")[0]):
        DrafterOptions(**wrong)


def test_unknown_options_are_refused() -> None:
    unknown: dict[str, Any] = {"budget": 3}
    with pytest.raises(TypeError, match="budget"):
        DrafterOptions(**unknown)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_an_answer_has_at_least_one_token(max_tokens: int) -> None:
    with pytest.raises(UsageError, match="max_tokens"):
        Request((), max_tokens)


def test_an_unknown_method_is_refused_and_the_known_ones_are_named() -> None:
    wrong: Any = "eagle"
    with pytest.raises(UsageError, match="'eagle'; choose from recap, plain, prompt-lookup"):
        SessionOptions(method=wrong)
