"""How many guesses are worth a pass: its cost by size, and how often claims come true."""

import random

import pytest

from engine.budget import Calibration, PassCost


def measured(base: float, slope: float, passes: int = 300, noise: float = 0.0) -> PassCost:
    """What is learned from passes of 1 to 40 tokens on a machine of these costs."""
    chance, cost = random.Random(0), PassCost()
    for _ in range(passes):
        tokens = chance.randint(1, 40)
        cost.observe(tokens, (base + slope * tokens) * (1 + noise * chance.random()))
    return cost


@pytest.mark.parametrize(("base", "slope"), [(0.03, 0.0003), (0.03, 0.003), (0.001, 0.0005)])
def test_the_cost_of_a_pass_is_learned(base: float, slope: float) -> None:
    cost = measured(base, slope)
    assert cost.base == pytest.approx(base, rel=0.25)
    assert cost.slope == pytest.approx(slope, rel=0.1)


def test_noise_and_hiccups_move_it_little() -> None:
    cost = measured(0.03, 0.003, noise=0.2)
    cost.observe(8, 5.0)
    assert cost.base + 8 * cost.slope == pytest.approx(0.054 * 1.1, rel=0.15)


def test_passes_of_one_size_leave_the_slope_near_the_prior() -> None:
    cost = PassCost()
    for _ in range(200):
        cost.observe(9, 0.05)
    assert cost.slope / cost.base == pytest.approx(PassCost.PRIOR_SHARE, rel=0.05)
    assert cost.base + 9 * cost.slope == pytest.approx(0.05, rel=0.05)


def test_the_dearer_a_token_the_likelier_a_guess_must_be() -> None:
    cheap, dear = measured(0.03, 0.0003), measured(0.03, 0.006)
    assert cheap.floor(1.0, 1) < 0.02
    assert dear.floor(1.0, 1) > 0.1


def test_a_guess_at_the_floor_leaves_expected_tokens_per_second_as_they_are() -> None:
    cost = measured(0.03, 0.003)
    expected, tokens = 2.2, 7
    probability = cost.floor(expected, tokens)
    before = expected / (cost.base + cost.slope * tokens)
    after = (expected + probability) / (cost.base + cost.slope * (tokens + 1))
    assert after == pytest.approx(before)


def test_a_machine_that_changes_is_followed() -> None:
    cost = measured(0.03, 0.0003)
    for i in range(300):
        tokens = 1 + i % 20
        cost.observe(tokens, 0.03 + 0.002 * tokens)
    assert cost.slope == pytest.approx(0.002, rel=0.15)


def test_claims_are_believed_as_far_as_they_came_true() -> None:
    calibration = Calibration((1.0, 0.5))
    assert calibration.survival(0, 0.9) == pytest.approx(0.9)
    assert calibration.survival(1, 0.9) == pytest.approx(0.45)
    for i in range(200):
        calibration.observe(0, 0.9, chosen=i % 4 == 0)
    assert calibration.survival(0, 0.9) == pytest.approx(0.25, abs=0.04)
    assert calibration.survival(0, 0.4) == pytest.approx(0.4), "other claims are another matter"
    assert calibration.survival(1, 0.9) == pytest.approx(0.45), "and so are other kinds"


def test_what_came_true_long_ago_is_forgotten() -> None:
    calibration = Calibration((1.0,))
    for _ in range(2_000):
        calibration.observe(0, 0.9, chosen=True)
    for _ in range(2_000):
        calibration.observe(0, 0.9, chosen=False)
    assert calibration.survival(0, 0.9) < 0.05


def test_a_certain_claim_has_a_place_too() -> None:
    calibration = Calibration((1.0,))
    calibration.observe(0, 1.0, chosen=True)
    assert 0.9 < calibration.survival(0, 1.0) <= 1.1
