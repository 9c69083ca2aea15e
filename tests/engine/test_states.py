"""States of a target, as bits."""

import pytest
import torch

from engine import kernels
from engine.logits import predict
from engine.states import BITS, WORDS, packed_states, states_of


def bit(states: object, row: int, at: int) -> bool:
    """One bit of [n, WORDS] states."""
    word = int(states[row, at // 64])  # type: ignore[index]
    return bool(word >> at % 64 & 1)


@pytest.fixture(params=["library", "c++"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without operators in C++, where there is a compiler."""
    if request.param == "library":
        monkeypatch.setattr(kernels, "loaded", lambda: False)
    else:
        request.getfixturevalue("compiler")
        kernels.load()


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [40, BITS, 600])
def test_a_state_is_which_numbers_are_positive(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, width, generator=generator).to(dtype)
    hidden[0, :3] = torch.tensor([torch.nan, 0.0, torch.inf])
    states = states_of(hidden)
    assert states.shape == (3, WORDS)
    for row, numbers in enumerate(hidden.tolist()):
        expected = [number > 0 for number in numbers[:BITS]]
        expected += [False] * (BITS - len(expected))
        assert [bit(states, row, at) for at in range(BITS)] == expected


@pytest.mark.parametrize("width", [40, BITS, 600])
def test_a_device_packs_the_same_states(width: int) -> None:
    hidden = torch.randn(5, width, generator=torch.Generator().manual_seed(1))
    packed = packed_states(hidden)
    assert packed.dtype == torch.int32
    assert packed.tolist() == states_of(hidden).view("int32").tolist()


def test_predictions_come_with_states_only_where_they_are_wanted() -> None:
    logits, hidden = torch.randn(2, 9), torch.randn(2, 5)
    states = predict(logits, 3, hidden).states
    assert states is not None
    assert states.tolist() == states_of(hidden).tolist()
    assert predict(logits, 3).states is None
