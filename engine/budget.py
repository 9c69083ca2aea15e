"""How many guesses are worth a pass here: what a pass costs, and how often guesses come true.

Both are learned online, per session, and may be remembered between sessions (see
`engine.memory.pace`). A probability that a memory states is a claim about some earlier context;
`Calibration` turns it into how often such claims held. `PassCost` follows the time of a pass by its
size: a token more costs next to nothing on a data-centre GPU, a tenth of a pass for a small model
on two cores, and the second token may cost more than the next seven. `Budget` brings both together
and picks the size. Knows no tokens and no clock.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

OUTLIER = 2.0
"""A pass that took this many times the expected is counted as if it had taken just that."""


class PassCost:
    """Time of a pass over n tokens, as a multiple of a pass over one: a curve through KNOTS.

    Between knots that were seen it is a line; beyond the last of them it goes on as steeply as it
    came from the first. A knot counts as seen after one pass of its size, or a few of sizes near.

    Attributes:
        at_knots: the curve there; never falling.
        measured: whether a pass was counted, here or before `restore`.
    """

    KNOTS = (1, 2, 4, 8, 16, 32, 64, 128)
    """Powers of two."""
    PRIOR_SLOPE = 0.02
    """What a token more is taken to cost before any pass was seen."""
    LEAST_SLOPE = 0.001
    MOST_PASSES = 1 << 53
    FEW = 4
    KNOWN = 0.5
    """What a knot must have seen to be part of the curve."""
    TICK = 1e-9
    """Seconds that a pass takes at least; a coarse clock may see none."""
    LEAST_RATE = 0.05
    DRIFT_RATE = 0.05
    SLOWNESS = 0.3
    """What a pass that was slow weighs, beside one that was fast: passes are slow by mischance,
    never fast."""

    def __init__(self) -> None:
        self.passes = 0
        self.measured = False
        self.last_seen = [0] * len(self.KNOTS)
        """By knot, when a pass of just that size was last seen; 0 for never."""
        self._seen = [0.0] * len(self.KNOTS)
        self._seconds = [1 + self.PRIOR_SLOPE * (n - 1) for n in self.KNOTS]
        self._redraw()

    def numbers(self) -> dict[str, Any]:
        """All that was learned, ready for JSON."""
        return {"seconds": self._seconds, "seen": self._seen, "passes": self.passes}

    def restore(self, seconds: list[float], seen: list[float], passes: int) -> None:
        """Go on with what `numbers` gave; ValueError for what it never gives."""
        if not len(seconds) == len(seen) == len(self.KNOTS):
            raise ValueError("of other knots")
        if min(seconds) <= 0 or min(passes, *seen) < 0 or passes > self.MOST_PASSES:
            raise ValueError("no times of passes")
        self._seconds, self._seen = list(map(float, seconds)), list(map(float, seen))
        self.passes = int(passes)
        self.measured = any(self._seen)
        self._redraw()

    def for_others(self, passes: int) -> "PassCost":
        """A curve of this form to begin with, as if after so many passes, where passes cost
        something else: the first one there gives its scale, and the first one at each knot counts.
        """
        other = PassCost()
        other.restore(self._seconds, [min(times, self.KNOWN) for times in self._seen], passes)
        other.measured = False
        return other

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass over this many tokens, root included, took this long.

        What is unexpected in it moves the knots beside `tokens`, by less the more passes they have
        seen, and a little the whole curve, which so follows a longer context or a machine that
        others slow down.
        """
        seconds = max(seconds, self.TICK)
        self.passes += 1
        if tokens > self.KNOTS[-1]:
            return
        if not self.measured:
            self.measured = True
            unit = seconds / self._expected(tokens)
            self._seconds = [unit * each for each in self._seconds]
            self._redraw()
        error = min(seconds / self._expected(tokens), OUTLIER)
        beside = self._beside(tokens)
        for knot, share in beside:
            before = self._seen[knot]
            if before < self.KNOWN:
                self._seconds[knot] = self._expected(self.KNOTS[knot])
            self._seen[knot] += share
            self._seconds[knot] *= error ** (share * self._rate(before, error))
            self._keep_rising(knot)
        # The less is known of a size, the less its surprises say about others.
        familiar = 1 - 1 / max(min(self._seen[knot] for knot, _ in beside), 1)
        drift = error ** (self.DRIFT_RATE * familiar * self._weight(error))
        self._seconds = [drift * each for each in self._seconds]
        self._redraw()

    def _keep_rising(self, knot: int) -> None:
        """Where a larger pass was faster, the few passes at this knot, or older ones there, err.

        A pass is slow by mischance, never fast.
        """
        for larger in range(knot + 1, len(self.KNOTS)):
            if self._seen[larger] >= self.KNOWN and self._seconds[larger] < self._seconds[knot]:
                if self._seen[knot] < self.FEW:
                    self._seconds[knot] = self._seconds[larger]
                else:
                    self._seconds[larger] = self._seconds[knot]

    def _rate(self, seen: float, error: float) -> float:
        """How far to go along with a pass at a knot that had seen so much before.

        The first is believed, and of the next ones those that are faster.
        """
        if seen < 1 or (error < 1 and seen < self.FEW):
            return 1.0
        return max(1 / (seen + 1), self.LEAST_RATE) * self._weight(error)

    def _weight(self, error: float) -> float:
        """Of a pass that took so many times the expected."""
        return self.SLOWNESS if error > 1 else 1.0

    def _beside(self, tokens: int) -> list[tuple[int, float]]:
        """The knots next to a size, and how much each has to say about it; 1 in all."""
        right = (tokens - 1).bit_length()
        if self.KNOTS[right] == tokens:
            self.last_seen[right] = self.passes
            return [(right, 1.0)]
        low, high = self.KNOTS[right - 1], self.KNOTS[right]
        share = (tokens - low) / (high - low)
        return [(right - 1, 1 - share), (right, share)]

    def _redraw(self) -> None:
        """Make the curve anew, in seconds at every knot: a line through those that were seen."""
        seen = [i for i, times in enumerate(self._seen) if times >= self.KNOWN] or [0]
        knots, known, last = self.KNOTS, self._seconds, seen[-1]
        first = known[seen[0]]
        if seen[0]:
            first /= 1 + self.PRIOR_SLOPE * (knots[seen[0]] - 1)
        curve = [first]
        for left, right in pairwise([0, *seen] if seen[0] else seen):
            rise = (known[right] - curve[-1]) / (knots[right] - knots[left])
            start = curve[-1]
            curve += [start + rise * (knots[i] - knots[left]) for i in range(left + 1, right + 1)]
        rise = self.PRIOR_SLOPE * first
        if last:
            rise = max((curve[-1] - first) / (knots[last] - 1), self.LEAST_SLOPE * first)
        end = curve[-1]
        curve += [end + rise * (knot - knots[last]) for knot in knots[last + 1 :]]
        self._curve = curve
        rising = list(accumulate(reversed(curve), min))[::-1]
        self.at_knots = [seconds / rising[0] for seconds in rising]

    def ratio(self, tokens: int) -> float:
        """Time of a pass over this many tokens, at most the last knot, by that of one over one."""
        return self._on_line(self.at_knots, tokens)

    def _expected(self, tokens: int) -> float:
        """Seconds of a pass over this many tokens, at most the last knot."""
        return self._on_line(self._curve, tokens)

    def _on_line(self, curve: Sequence[float], tokens: int) -> float:
        right = (tokens - 1).bit_length()  # of the first knot that is not smaller
        if not right:
            return curve[0]
        start, left = curve[right - 1], self.KNOTS[right - 1]
        return start + (curve[right] - start) * (tokens - left) / left


class Budget:
    """Picks the size of a tree whose nodes are offered likeliest first.

    All passes together yield most where each node is worth what its slot costs at the rate of
    tokens that passes have had of late: of E expected tokens for a cost C the size with the largest
    E - rate * C is kept. (The largest E / C of each pass would give too many slots to passes that
    foresee little.) How many of the drafted tokens come true beside what was promised scales all
    promises.
    Sizes whose cost is not known are tried out: a few in the first passes, later one now and then,
    so that a size that was once dear by mischance is not given up for good.

    The longer the context, the more a token more in a pass costs, on a CPU above all: costs are
    kept for contexts of up to `SHORT` tokens, twice as many, and so on.

    Attributes:
        cost: of passes behind a context like the present one.
    """

    SHORT = 512
    DECAY = 0.95
    PRIOR = 6.0
    WORTH = 1.4
    """A drafted token is worth more than its chance to be accepted: what the target predicts after
    it is learned in any case. Measured on the demo model, where 1.3 to 1.7 were alike."""
    LEARNED = 0.2
    """What a slot is worth for the same reason, whatever its chance: this share of the accepted
    tokens that predictions of rejected guesses foresaw, by how many such guesses there were."""
    LEARNED_PRIOR = (5.0, 100.0)
    """Both, as if seen before. Where nothing ever comes back, slots that teach end up taking
    LEARNED * 5 * (1 - LEARNED_DECAY) of a plain step, whatever one costs."""
    LEARNED_DECAY = 0.99
    WARM_UP = 2
    """Passes whose time is not counted: they allocate, and fill caches."""
    COLD = 4
    """Their size."""
    SIZES = frozenset((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128))
    """Sizes of trees unless another is better by more than `NEARLY` of the expected tokens: a size
    that was not run before in this process has its kernels made first, which takes milliseconds."""
    NEARLY = 0.03
    FIRST = (1, 8, 1, 8)
    """Sizes that are tried out at first."""
    LATER = PassCost.KNOTS[:5]
    """Sizes that are tried out later on, unless a pass is so dear:"""
    DEAR = 4.0
    FADING = 0.75
    """How likely further nodes are beside the next, where a size is only looked forward to."""
    RATE_PRIOR = 6.0
    """Plain steps, as if seen before."""
    RATE_DECAY = 0.98
    AGAIN = 64
    """Passes from one trial to the next; the first come after 8, 16 and 32."""

    def __init__(self) -> None:
        self._costs: dict[int, PassCost] = {}
        self._cold = self.WARM_UP
        self._ran: set[int] = set()
        self._promised = self._came = self.PRIOR
        self._foreseen, self._rejected = self.LEARNED_PRIOR
        self._committed = self._spent = self.RATE_PRIOR
        self.start()

    def numbers(self) -> dict[str, Any]:
        """All that was learned of costs, ready for JSON."""
        return {str(length): cost.numbers() for length, cost in self._known().items()}

    def restore(self, numbers: dict[str, Any]) -> None:
        """Go on with what `numbers` gave; ValueError, TypeError or AttributeError for other things,
        and then all is as before."""
        costs = {}
        for length, learned in numbers.items():
            costs[int(length)] = cost = PassCost()
            cost.restore(**learned)
        self._costs = costs
        self.start()

    def _known(self) -> dict[int, PassCost]:
        """Costs behind contexts behind which passes were counted, by length."""
        return {length: cost for length, cost in self._costs.items() if cost.measured}

    def start(self, context: int = 0) -> None:
        """A new tree, of its root alone, behind so many tokens."""
        length = (context // self.SHORT).bit_length()
        if length not in self._costs or not self._costs[length].measured:
            known = self._known()
            nearest = min(known, key=lambda other: abs(other - length), default=None)
            self._costs[length] = (
                PassCost() if nearest is None else known[nearest].for_others(len(self.FIRST))
            )
        self.cost = self._costs[length]
        self._size = self._usual = self._tokens = 1
        self._rate = max(self._committed / self._spent, 1.0)  # which plain steps have
        self._expected = 1.0
        self._best = self._best_usual = self._value()
        self._sums = [0.0]
        self._trust = self.WORTH * self._came / self._promised
        self._learned = self.LEARNED * self._foreseen / self._rejected
        self._trial = self._next_trial()

    def _next_trial(self) -> int:
        """The size that this pass tries out; 0 for none."""
        passes = self.cost.passes
        if self._cold:
            return self.COLD
        if passes < len(self.FIRST):
            return self.FIRST[passes]
        if passes % self.AGAIN == 0 or passes in (8, 16, 32):
            ages = zip(self.cost.last_seen, self.LATER, strict=False)
            return min(age for age in ages if self.cost.ratio(age[1]) < self.DEAR)[1]
        return 0

    @property
    def size(self) -> int:
        """Tokens of the best tree among those offered, root included, or of one nearly as good."""
        nearly = self._best - self.NEARLY * self._expected
        return self._usual if self._best_usual >= nearly else self._size

    def floor(self) -> float:
        """No path less probable than this can be worth its slot, in a tree of any size.

        Some slots cost less than those before: a second token may be dear, a tenth nearly free.
        """
        if self._trial:
            return 0.0
        points = pairwise(zip(PassCost.KNOTS, self.cost.at_knots, strict=True))
        slopes = ((high - low) / (right - left) for (left, low), (right, high) in points)
        return max(self._rate * min(slopes) - self._learned, 0.0) / self._trust

    def wants(self, probability: float) -> bool:
        """Whether the next likeliest node may pay, now or with others behind it; if so, it is in.

        Args:
            probability: that of its path being accepted.
        """
        if self._tokens >= (self._trial or PassCost.KNOTS[-1]):
            return False
        gain = probability * self._trust + self._learned
        value = self._value(1, gain)
        if not self._trial and value <= self._best and not self._later(gain):
            return False
        self._tokens += 1
        self._expected += gain
        self._sums.append(self._sums[-1] + probability)
        if value > self._best or self._trial:
            self._best, self._size = value, self._tokens
        if self._tokens in self.SIZES and (value > self._best_usual or self._trial):
            self._best_usual, self._usual = value, self._tokens
        return True

    def _value(self, more: int = 0, gain: float = 0.0) -> float:
        """Of a tree with so many more nodes, which add so many expected tokens in all."""
        return self._expected + gain - self._rate * self.cost.ratio(self._tokens + more)

    def _later(self, gain: float) -> bool:
        """Whether a larger tree would pay if its further nodes were nearly as likely."""
        each = self.FADING * gain
        tokens, expected = self._tokens, self._expected - each * self._tokens
        return any(
            expected + each * larger - self._rate * ratio > self._best
            for larger, ratio in zip(PassCost.KNOTS, self.cost.at_knots, strict=True)
            if larger > tokens
        )

    def observe(self, tokens: int, committed: int, seconds: float, foreseen: int = 0) -> None:
        """A pass over a tree of `tokens`, root included, took this long and committed so much.

        Args:
            foreseen: how much of it by what was predicted after rejected guesses.
        """
        if self._cold:
            self._cold -= 1
        elif tokens in self._ran:
            self.cost.observe(tokens, seconds)
        self._ran.add(tokens)
        prior, decay = self.RATE_PRIOR, self.RATE_DECAY
        spent = self.cost.ratio(min(tokens, PassCost.KNOTS[-1]))
        self._committed = _faded(self._committed, committed, prior, decay)
        self._spent = _faded(self._spent, spent, prior, decay)
        if 1 < tokens <= len(self._sums):
            promised = self._sums[tokens - 1]
            self._promised = _faded(self._promised, promised, self.PRIOR, self.DECAY)
            self._came = _faded(self._came, committed - 1, self.PRIOR, self.DECAY)
        rejected, decay = tokens - committed, self.LEARNED_DECAY
        foreseen_before, rejected_before = self.LEARNED_PRIOR
        self._foreseen = _faded(self._foreseen, foreseen, foreseen_before, decay)
        self._rejected = _faded(self._rejected, rejected, rejected_before, decay)


def _faded(total: float, new: float, prior: float, decay: float) -> float:
    """A sum that forgets: what was counted fades, and what it began with, `prior`, does not."""
    return decay * total + new + (1 - decay) * prior


class Calibration:
    """How often a guess is chosen if its parent is, by kind of guess and by claimed probability.

    Each cell's share is the guesses that came true by the sum of what was claimed for them. Counts
    start as if each cell had been seen a few times, and forget slowly.

    Attributes:
        shares: by kind and `STEPS` of claimed probability, what to multiply the claim by.
    """

    STEPS = 64
    EDGES = (1, 2, 4, 8, 16, 26, 36, 46, 54, 60)
    """Cells in steps: fine where claims are small, which most guesses of a tree make."""
    CELLS = tuple(map(partial(bisect_right, EDGES), range(STEPS + 1)))
    """The cell of each step."""
    PRIOR_WEIGHT = 8.0
    """Claimed guesses, as if seen before."""
    MEMORY = 100.0
    """Claimed guesses that a cell remembers."""

    def __init__(self, trust: Sequence[float]) -> None:
        """`trust`: of each kind, which share of a claim to believe before anything was seen."""
        ends = (0, *self.EDGES, self.STEPS + 1)
        self._steps = [range(*pair) for pair in pairwise(ends)]
        cells = len(self._steps)
        self._claimed = [[self.PRIOR_WEIGHT] * cells for _ in trust]
        self._true = [[self.PRIOR_WEIGHT * share] * cells for share in trust]
        self.shares = [[share] * (self.STEPS + 1) for share in trust]

    def survival(self, kind: int, claim: float) -> float:
        """Probability that a guess with this claimed probability is chosen."""
        return min(claim * self.shares[kind][int(claim * self.STEPS)], 1.0)

    def numbers(self) -> dict[str, Any]:
        """All that was learned, ready for JSON."""
        return {"claimed": self._claimed, "true": self._true}

    def restore(self, claimed: list[list[float]], true: list[list[float]]) -> None:
        """Go on with what `numbers` gave, of as many kinds and cells."""
        for kind, (ours, theirs, came) in enumerate(zip(self._claimed, claimed, true, strict=True)):
            for cell, pair in enumerate(zip(theirs, came, strict=True)):
                ours[cell], self._true[kind][cell] = float(pair[0]), float(pair[1])
                self._share(kind, cell)

    def observe(self, kind: int, claim: float, chosen: bool) -> None:
        """A guess whose parent was chosen was chosen itself, or not."""
        cell = self.CELLS[int(claim * self.STEPS)]
        claimed, true = self._claimed[kind], self._true[kind]
        claimed[cell] += claim
        true[cell] += chosen
        if claimed[cell] > self.MEMORY:
            claimed[cell] /= 2
            true[cell] /= 2
        self._share(kind, cell)

    def _share(self, kind: int, cell: int) -> None:
        share = self._true[kind][cell] / self._claimed[kind][cell]
        for step in self._steps[cell]:
            self.shares[kind][step] = share
