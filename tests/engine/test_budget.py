"""How many guesses are worth a pass: its cost by size, and how often claims come true."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.budget import Budget, Calibration, PassCost

Curve = Callable[[int], float]


def line(slope: float) -> Curve:
    return lambda tokens: 1 + slope * (tokens - 1)


def through(**points: float) -> Curve:
    """A curve through points named by their size, as in `n2=1.6`."""
    sizes = [1, *(int(name[1:]) for name in points)]
    return lambda tokens: float(np.interp(tokens, sizes, [1, *points.values()]))


AMX = through(n17=1.27, n65=1.8)
"""SmolLM2-135M in bfloat16 on two cores with AMX."""
STEP = through(n2=1.6, n16=2.2, n32=3.4, n64=5.5)
"""A machine on which a second token is dear, and the next ones are not."""
GPU = line(0.0015)
ALMOST_CERTAIN = [0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1] + [0.05] * 50
HOPELESS = [0.02] * 50


def measured(curve: Curve, passes: int = 300, noise: float = 0.0) -> PassCost:
    """What is learned from passes of 1 to 40 tokens on a machine of these costs."""
    chance, cost = random.Random(0), PassCost()
    for _ in range(passes):
        tokens = chance.randint(1, 40)
        cost.observe(tokens, 0.03 * curve(tokens) * (1 + noise * chance.random()))
    return cost


@pytest.mark.parametrize("curve", [line(0.002), line(0.1), AMX, STEP])
def test_the_cost_of_a_pass_is_learned(curve: Curve) -> None:
    cost = measured(curve)
    for tokens in (2, 4, 8, 16, 32):
        assert cost.ratio(tokens) == pytest.approx(curve(tokens), rel=0.12)


def test_noise_and_hiccups_move_it_little() -> None:
    cost = measured(AMX, noise=0.2)
    cost.observe(8, 5.0)
    assert cost.ratio(8) == pytest.approx(AMX(8), rel=0.12)


def test_a_size_that_is_seldom_tried_is_not_taken_for_slower_because_others_stumble() -> None:
    chance, cost = random.Random(0), PassCost()
    for number in range(3000):
        tokens = 1 if number < 6 or number % 300 == 0 else 8
        hiccup = 1 + 0.1 * chance.random() + (chance.random() < 0.1)
        cost.observe(tokens, 0.03 * AMX(tokens) * hiccup)
    assert cost.ratio(8) == pytest.approx(AMX(8), rel=0.05)


def test_before_anything_was_seen_a_token_costs_a_little() -> None:
    assert PassCost().ratio(1) == 1
    assert 1.1 < PassCost().ratio(16) < 2


def test_what_is_not_seen_follows_from_what_is() -> None:
    cost = PassCost()
    for _ in range(4):
        cost.observe(1, 0.01)
        cost.observe(16, 0.0103)
    assert cost.ratio(64) < 1.2, "as flat as the part that is known"


def test_a_larger_pass_that_was_faster_shows_that_smaller_ones_are_no_slower() -> None:
    cost = PassCost()
    for tokens, seconds in ((1, 0.09), (1, 0.03), (1, 0.09), (16, 0.045), (4, 0.09)):
        cost.observe(tokens, seconds)
    assert cost.at_knots == sorted(cost.at_knots)
    cost.observe(1, 0.03)
    assert cost.ratio(16) == pytest.approx(1.5, rel=0.05)


def test_a_machine_that_changes_is_followed() -> None:
    cost = measured(line(0.01))
    for i in range(400):
        tokens = 1 + i % 20
        cost.observe(tokens, 0.05 * line(0.07)(tokens))
    assert cost.ratio(16) == pytest.approx(line(0.07)(16), rel=0.12)


def test_a_pass_beyond_the_curve_is_no_news() -> None:
    cost = measured(AMX)
    before = cost.at_knots
    cost.observe(PassCost.KNOTS[-1] + 1, 9.0)
    assert cost.at_knots == before


def offer(budget: Budget, chances: Sequence[float]) -> None:
    """As many nodes as a budget wants, likeliest first."""
    for promised in chances:
        if not budget.wants(promised):
            break


def run(curve: Curve, chances: Sequence[float], passes: int = 300) -> tuple[float, list[int]]:
    """Speed against plain decoding, and the sizes chosen, where guesses hold as promised."""
    chance, budget = random.Random(1), Budget()
    sizes, tokens, time = [], 0, 0.0
    for _ in range(passes):
        budget.start()
        offer(budget, chances)
        size = budget.size
        committed = 1 + sum(chance.random() < promised for promised in chances[: size - 1])
        budget.observe(size, committed, 0.03 * curve(size) * (1 + 0.1 * chance.random()))
        sizes.append(size)
        tokens += committed
        time += curve(size)
    return tokens / time, sizes


def best(curve: Curve, chances: Sequence[float]) -> float:
    return max((1 + sum(chances[: n - 1])) / curve(n) for n in range(1, len(chances) + 2))


@pytest.mark.parametrize("curve", [line(0.02), line(0.3), AMX, STEP, GPU])
@pytest.mark.parametrize("chances", [ALMOST_CERTAIN, HOPELESS])
def test_it_is_nearly_as_fast_as_the_best_size(curve: Curve, chances: Sequence[float]) -> None:
    speed, _ = run(curve, chances)
    assert speed > 0.93 * best(curve, chances)


def test_where_nothing_is_worth_guessing_passes_are_plain() -> None:
    _, sizes = run(line(0.1), HOPELESS)
    assert sizes[10:].count(1) > 0.95 * len(sizes[10:])


def test_a_dear_second_token_does_not_hide_that_many_pay() -> None:
    _, sizes = run(STEP, ALMOST_CERTAIN)
    assert np.median(sizes[10:40]) > 6


def test_a_slot_that_costs_next_to_nothing_takes_an_improbable_path() -> None:
    budget = Budget()
    budget.cost = measured(through(n2=1.5, n64=1.56))
    budget.start()
    assert budget.floor() < 0.002, "however dear the second token is"


def test_the_cheaper_a_token_the_larger_the_tree() -> None:
    dear, cheap = (np.median(run(curve, ALMOST_CERTAIN)[1]) for curve in (line(0.3), GPU))
    assert dear < 10
    assert cheap > 20


@pytest.mark.parametrize("slope", [0.001, 0.002, 0.005, 0.01])
def test_a_cheap_slot_is_taken_for_what_it_teaches_only_where_that_comes_back(slope: float) -> None:
    costs = []
    for foreseen in (0, 1):
        budget, cost = Budget(), []
        for number in range(600):
            budget.start()
            offer(budget, [0.0001] * 60)
            cost.append(line(slope)(budget.size))
            budget.observe(budget.size, 1, 0.03 * cost[-1], foreseen * (number % 2))
        costs.append(np.mean(cost[300:]))
    assert costs[0] < 1.03, "where nobody can foresee anything a request is hardly slower"
    assert costs[1] > 1 + 10 * slope


def test_promises_that_are_not_kept_are_believed_less() -> None:
    budget, sizes = Budget(), []
    for _ in range(100):
        budget.start()
        while budget.wants(0.3):
            pass
        budget.observe(budget.size, 1, 0.03 * line(0.1)(budget.size))
        sizes.append(budget.size)
    assert max(sizes[:20]) > 4
    assert np.median(sizes[50:]) == 1


def test_a_size_that_was_dear_by_mischance_gets_another_chance() -> None:
    budget = Budget()
    for tokens in (1, 1, 1, 16, 1, 16):
        budget.start()
        budget.observe(tokens, tokens, 0.03 * (9 if tokens > 1 else 1))
    assert budget.cost.ratio(16) > 1.5
    _drive(budget, GPU, ALMOST_CERTAIN, passes=1200)
    assert budget.cost.ratio(16) == pytest.approx(GPU(16), rel=0.05)


def test_a_size_that_runs_for_the_first_time_says_nothing_of_its_cost() -> None:
    budget = Budget()
    for tokens in (4, 4, 1, 1, 8, 8, 12):
        before = budget.numbers()
        slow = tokens == 12
        budget.start()
        budget.observe(tokens, 1, 3.0 if slow else 0.03)
    assert budget.numbers() == before


def test_trees_have_few_sizes() -> None:
    chance, budget, sizes = random.Random(0), Budget(), []
    for _ in range(200):
        budget.start()
        fading = chance.uniform(0.7, 0.95)
        offer(budget, [fading ** (node + 1) for node in range(60)])
        budget.observe(budget.size, 2, 0.03 * AMX(budget.size))
        sizes.append(budget.size)
    assert np.mean([size in Budget.SIZES for size in sizes]) > 0.9


def test_behind_a_longer_context_passes_cost_something_else() -> None:
    short, long, budget, sizes = line(0.02), line(0.4), Budget(), []
    for number in range(600):
        context, curve = (100, short) if number // 50 % 2 else (3000, long)
        budget.start(context)
        offer(budget, ALMOST_CERTAIN)
        budget.observe(budget.size, 1 + budget.size // 2, 0.03 * curve(budget.size))
        sizes.append(budget.size)
    assert np.median(sizes[-100:-50]) < 8 < np.median(sizes[-50:])
    again = Budget()
    again.restore(budget.numbers())
    assert again.numbers() == budget.numbers()


def test_a_context_of_a_new_length_begins_with_what_is_known_of_the_nearest() -> None:
    budget = Budget()
    for _ in range(3):  # two are not counted
        budget.start(3000)
        budget.observe(8, 2, 0.9)
    for context in (100, 600, 100_000):
        budget.start(context)
        assert budget.cost.ratio(8) == pytest.approx(1 + 7 * PassCost.PRIOR_SLOPE)
        assert budget.cost.passes, "no first trials again"
        budget.observe(8, 2, 0.1)
    assert budget.numbers().keys() == {"0", "1", "3", "8"}


def test_costs_that_were_only_taken_over_are_not_saved() -> None:
    budget = Budget()
    for _ in range(3):
        budget.start(3000)
        budget.observe(8, 2, 0.9)
    budget.start(100)
    assert budget.numbers().keys() == {"3"}
    again = Budget()
    again.restore(budget.numbers())
    for each in (budget, again):
        for _ in range(3):
            each.start(100)
            each.observe(8, 2, 0.048)
    assert again.cost.ratio(8) == pytest.approx(budget.cost.ratio(8))


def test_a_longer_context_at_which_all_is_dearer_changes_no_ratio() -> None:
    budget = Budget()
    for seconds, context in ((0.03, 100), (0.09, 3000)):
        for number in range(40):
            tokens = (1, 2, 4, 8, 16)[number % 5] if context == 100 else 8
            budget.start(context)
            budget.observe(tokens, 1, seconds * AMX(tokens))
    assert budget.cost.ratio(8) == pytest.approx(AMX(8), rel=0.02)


def _drive(budget: Budget, curve: Curve, chances: Sequence[float], passes: int) -> None:
    for _ in range(passes):
        budget.start()
        offer(budget, chances)
        budget.observe(budget.size, 1 + budget.size // 2, 0.03 * curve(budget.size))


def test_what_slowed_the_first_passes_does_not_decide_for_long() -> None:
    budget, curve, sizes = Budget(), line(0.1), []
    for number in range(40):
        budget.start()
        offer(budget, HOPELESS)
        slowed = 3 if number < 4 else 1
        budget.observe(budget.size, 1, 0.03 * slowed * curve(budget.size))
        sizes.append(budget.size)
    assert np.median(sizes[12:]) == 1


def test_nothing_below_the_floor_is_wanted() -> None:
    budget = Budget()
    _drive(budget, line(0.1), ALMOST_CERTAIN, passes=50)
    budget.start()
    assert 0 < budget.floor() < 1
    assert not budget.wants(0.99 * budget.floor())


def test_where_passes_commit_much_a_guess_must_be_worth_more() -> None:
    """A slot costs a tenth of a plain step: there that is the time of 0.3 tokens, else of 0.1."""
    wanted = []
    for chances in (HOPELESS, ALMOST_CERTAIN):
        budget = Budget()
        _drive(budget, line(0.1), chances, passes=50)
        budget.start()
        wanted.append(budget.wants(0.15))
    assert wanted == [True, False]


def test_where_trees_came_to_nothing_a_guess_must_be_worth_as_much_as_beside_plain_steps() -> None:
    budget, curve = Budget(), line(0.1)
    for size in (1, 16) * 25:
        budget.start()
        budget.observe(size, 1, 0.03 * curve(size))
    budget.start()
    assert not budget.wants(0.05)


@pytest.mark.parametrize(
    ("first", "seen", "passes"),
    [(0.0, 1.0, 9), (-0.1, 1.0, 9), (0.1, 0.0, 9), (0.1, -1.0, 9), (0.1, 1.0, -9)],
)
def test_times_that_no_pass_took_are_not_gone_on_with(
    first: float, seen: float, passes: int
) -> None:
    cost = PassCost()
    before = cost.numbers()
    others = [0.0] * (len(PassCost.KNOTS) - 1)
    with pytest.raises(ValueError, match="no times of passes"):
        cost.restore([first, *others], [seen, *others], passes)
    assert cost.numbers() == before


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
    for _ in range(9):
        calibration.observe(0, 0.95, chosen=True)
    assert calibration.survival(0, 1.0) == 1.0


def test_what_was_remembered_of_claims_is_believed_again() -> None:
    first, second = Calibration((1.0, 0.5)), Calibration((1.0, 0.5))
    for i in range(50):
        first.observe(i % 2, 0.9, chosen=i % 3 == 0)
    second.restore(**first.numbers())
    assert second.shares == first.shares != Calibration((1.0, 0.5)).shares
